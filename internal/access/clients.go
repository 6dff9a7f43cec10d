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
	key := clientOf(address)
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
	key := clientOf(address)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used[key]--; c.used[key] == 0 {
		delete(c.used, key)
	}
}

func clientOf(address string) string {
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

// Limit returns a listener that closes the connections of clients which have as many as
// they may. Proxies may have any number.
func Limit(l net.Listener, clients *Clients, proxies *Proxies) net.Listener {
	return &limited{l, clients, proxies}
}

type limited struct {
	net.Listener
	clients *Clients
	proxies *Proxies
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address := conn.RemoteAddr().String()
		if l.proxies.Trusts(address) {
			return conn, nil
		}
		if l.clients.Enter(address) {
			return &counted{Conn: conn, leave: sync.OnceFunc(func() { l.clients.Leave(address) })}, nil
		}
		conn.Close()
	}
}

type counted struct {
	net.Conn
	leave func()
}

func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
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
