package access

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// Clients counts what each client has in use, by its address: of IPv6 the first 64
// bits, which is what one machine is given.
type Clients struct {
	most int // of one client; 0 is no limit
	mu   sync.Mutex
	used map[string]int
}

// NewClients lets each client have at most so many; 0 is no limit.
func NewClients(most int) *Clients { return &Clients{most: most, used: map[string]int{}} }

// Enter takes one for the client at an address, if it has not too many. Whoever got one
// gives it back by Leave.
func (c *Clients) Enter(address string) bool {
	if c.most == 0 {
		return true
	}
	key := ClientOf(address)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used[key] >= c.most {
		return false
	}
	c.used[key]++
	return true
}

// Leave gives one back.
func (c *Clients) Leave(address string) {
	if c.most == 0 {
		return
	}
	key := ClientOf(address)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used[key]--; c.used[key] == 0 {
		delete(c.used, key)
	}
}

// ClientOf names the client of an address: its host, of IPv6 the network of 64 bits.
func ClientOf(address string) string {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return address // a Unix socket
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is6() {
		if prefix, err := ip.Prefix(64); err == nil {
			return prefix.String()
		}
	}
	return ip.String()
}

// Limit returns a listener that notes which connections are of clients which have as many as
// they may: they are [Spare]. Proxies may have any number. Of the spare ones the newest few
// stay, so that a request for the health of a service comes through whatever else its
// client does. Refused is told of connections that were ended for it, and of errors of
// accepting.
func Limit(l net.Listener, clients *Clients, proxies *Proxies, refused func(address string, err error)) net.Listener {
	return &limited{Listener: l, clients: clients, proxies: proxies, refused: refused}
}

// spares is how many connections beyond the bounds stay.
const spares = 64

type limited struct {
	net.Listener
	clients *Clients
	proxies *Proxies
	refused func(address string, err error)

	mu    sync.Mutex
	spare []*counted // oldest first
}

func (l *limited) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		if !errors.Is(err, net.ErrClosed) {
			l.refused("", err)
		}
		return nil, err
	}
	address := conn.RemoteAddr().String()
	if l.proxies.Trusts(address) {
		return conn, nil
	}
	if l.clients.Enter(address) {
		return &counted{Conn: conn, leave: sync.OnceFunc(func() { l.clients.Leave(address) })}, nil
	}
	c := &counted{Conn: conn, spare: true}
	c.leave = sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.spare = slices.DeleteFunc(l.spare, func(other *counted) bool { return other == c })
	})
	l.mu.Lock()
	var oldest *counted
	if len(l.spare) == spares {
		oldest = l.spare[0]
	}
	l.spare = append(l.spare, c)
	l.mu.Unlock()
	if oldest != nil {
		oldest.Close()
		l.refused(oldest.RemoteAddr().String(), nil)
	}
	return c, nil
}

type counted struct {
	net.Conn
	spare bool
	leave func()
}

func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// Spare tells whether a connection of [Limit] is beyond what its client may have.
func Spare(conn net.Conn) bool {
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secure.NetConn()
	}
	c, ok := conn.(*counted)
	return ok && c.spare
}

// ErrOpenToAll is the error of [CheckAddress].
var ErrOpenToAll = errors.New("other machines can reach this address, and without a token anybody could use the service")

// CheckAddress returns ErrOpenToAll for an address that other machines can reach.
func CheckAddress(address net.Addr) error {
	if tcp, ok := address.(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
		return ErrOpenToAll
	}
	return nil
}

// OwnHost tells whether a request names its host by an address, as localhost or by one
// of the names. A page of another site that lets its name lead here (DNS rebinding)
// names another.
func OwnHost(r *http.Request, names []string) bool {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host == "" || host == "localhost" || slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, host) })
}
