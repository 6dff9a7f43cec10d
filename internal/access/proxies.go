package access

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Proxies are those whose header X-Forwarded-For is believed. Nil believes nobody.
type Proxies struct {
	unix     bool // whoever comes by a Unix socket
	prefixes []netip.Prefix
}

// ParseProxies reads addresses, networks (10.0.0.0/8) and "unix", which is all who come by
// a Unix socket.
func ParseProxies(list []string) (*Proxies, error) {
	var p Proxies
	for _, text := range list {
		if text == "unix" {
			p.unix = true
			continue
		}
		prefix, err := netip.ParsePrefix(text)
		if address, other := netip.ParseAddr(text); other == nil {
			prefix, err = netip.PrefixFrom(address, address.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("%q is no address and no network such as 10.0.0.0/8", text)
		}
		p.prefixes = append(p.prefixes, prefix.Masked())
	}
	return &p, nil
}

// Trusts tells whether an address of a connection is that of one of the proxies.
func (p *Proxies) Trusts(address string) bool {
	if p == nil {
		return false
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return p.unix // an address of a Unix socket is no address and port
	}
	return p.has(at.Addr())
}

func (p *Proxies) has(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	for _, prefix := range p.prefixes {
		if prefix.Contains(address) {
			return true
		}
	}
	return false
}

// Client returns the address of who asked: that of the connection or, where it is of a
// proxy, the last in X-Forwarded-For that is of none. Each proxy adds the address that it
// was asked from at the end, so that what lies before is what a client may have written.
func (p *Proxies) Client(r *http.Request) string {
	client := r.RemoteAddr
	if !p.Trusts(client) {
		return client
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(hops) - 1; i >= 0; i-- {
		address, ok := hop(strings.TrimSpace(hops[i]))
		if !ok {
			break // no proxy wrote this
		}
		if client = net.JoinHostPort(address.String(), "0"); !p.has(address) {
			break
		}
	}
	return client
}

// hop reads an address with or without a port.
func hop(text string) (netip.Addr, bool) {
	if at, err := netip.ParseAddrPort(text); err == nil {
		return at.Addr().Unmap(), true
	}
	address, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return address.Unmap(), err == nil
}
