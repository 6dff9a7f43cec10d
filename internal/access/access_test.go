package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

var quiet = slog.New(slog.DiscardHandler)

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestTokens: tokens change with their file, and a file that is wrong lets nobody in.
func TestTokens(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	const first, second = "first-0123456789", "second-0123456789"
	for _, text := range []string{"", "# none\n", "short\n", "with a space 0123456789\n", "0123456789abcdef gate\n", "0123456789abcdef gate judge,god\n"} {
		write(t, file, text)
		if _, err := OpenTokens(file, quiet); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
	write(t, file, first+"\n")
	tokens, err := OpenTokens(file, quiet)
	if err != nil {
		t.Fatal(err)
	}
	allows := func(token string) bool {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		_, ok := tokens.Bearer(r)
		return ok
	}
	again := func(text string) {
		write(t, file, text)
		tokens.checked = time.Time{} // it is looked at once a second
	}
	if !allows(first) || allows(second) || allows("") {
		t.Error("the first token")
	}
	again(first + "\r\n" + second + "\n")
	if !allows(first) || !allows(second) {
		t.Error("both tokens")
	}
	again("no\n")
	if allows(first) || allows(second) || allows("no") {
		t.Error("a file that is wrong lets somebody in")
	}
	again(second)
	if allows(first) || !allows(second) {
		t.Error("the second token")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	tokens.checked = time.Time{}
	if allows(second) {
		t.Error("a file that is gone lets somebody in")
	}
}

// pair writes a certificate with a serial number, and its key.
func pair(t *testing.T, cert, key string, serial int64) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	public, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: public})))
	write(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
}

// TestCertificate: a certificate changes with its files, and stays while they are wrong.
func TestCertificate(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	if _, err := OpenCertificate(cert, key, quiet); err == nil {
		t.Error("no files were taken")
	}
	pair(t, cert, key, 1)
	c, err := OpenCertificate(cert, key, quiet)
	if err != nil {
		t.Fatal(err)
	}
	serial := func() int64 {
		c.checked = time.Time{}
		now, err := c.Config().GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return now.Leaf.SerialNumber.Int64()
	}
	write(t, cert, "broken")
	if serial() != 1 {
		t.Error("the old one did not stay")
	}
	pair(t, cert, key, 2)
	if serial() != 2 {
		t.Error("the new one was not read")
	}
}

func TestClients(t *testing.T) {
	c := NewClients(2)
	if !c.Enter("10.0.0.1:1") || !c.Enter("10.0.0.1:2") || c.Enter("10.0.0.1:3") || !c.Enter("10.0.0.2:1") {
		t.Error("an address has two")
	}
	if c.Leave("10.0.0.1:9"); !c.Enter("10.0.0.1:3") {
		t.Error("one was given back")
	}
	if !c.Enter("[2001:db8::1]:1") || !c.Enter("[2001:db8::2]:1") || c.Enter("[2001:db8::3]:1") || !c.Enter("[2001:db8:0:1::1]:1") {
		t.Error("64 bits are one client")
	}
	if !c.Enter("[::ffff:10.0.0.3]:1") || !c.Enter("10.0.0.3:1") || c.Enter("10.0.0.3:2") {
		t.Error("one address in two forms")
	}
	for none, i := NewClients(0), 0; i < 2; i++ {
		if !none.Enter("x") {
			t.Error("0 is no limit")
		}
	}
}

// TestLimit: a client's surplus connections are closed, and one that ends makes room.
// TestProxies: the client is the last address that no trusted proxy has, whatever clients
// write before it.
func TestProxies(t *testing.T) {
	p, err := ParseProxies([]string{"10.0.0.0/8", "2001:db8::1", "unix"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		remote  string
		headers []string
		want    string
	}{
		{"203.0.113.7:5", []string{"198.51.100.1"}, "203.0.113.7:5"}, // no proxy
		{"10.0.0.1:5", nil, "10.0.0.1:5"},
		{"10.0.0.1:5", []string{"198.51.100.1"}, "198.51.100.1:0"},
		{"10.0.0.1:5", []string{"1.1.1.1, 198.51.100.1, 10.9.9.9"}, "198.51.100.1:0"},
		{"10.0.0.1:5", []string{"1.1.1.1", "198.51.100.1:77"}, "198.51.100.1:0"},
		{"[2001:db8::1]:5", []string{"[2001:db8::2]:77"}, "[2001:db8::2]:0"},
		{"[::ffff:10.0.0.1]:5", []string{"2001:db8::2"}, "[2001:db8::2]:0"},
		{"[2001:db8::2]:5", []string{"1.1.1.1"}, "[2001:db8::2]:5"},
		{"10.0.0.1:5", []string{"1.1.1.1, nonsense, 10.0.0.2"}, "10.0.0.2:0"},
		{"10.0.0.1:5", []string{"10.0.0.3"}, "10.0.0.3:0"},
		{"@", []string{"198.51.100.1"}, "198.51.100.1:0"},
	} {
		r := &http.Request{RemoteAddr: tt.remote, Header: http.Header{"X-Forwarded-For": tt.headers}}
		if got := p.Client(r); got != tt.want {
			t.Errorf("%s %q: %s, want %s", tt.remote, tt.headers, got, tt.want)
		}
	}
	if none, err := ParseProxies(nil); err != nil || none.Trusts("10.0.0.1:5") || none.Trusts("@") {
		t.Error("a proxy that nobody named")
	}
	for _, bad := range []string{"", "10.0.0", "proxy", "10.0.0.0/40"} {
		if _, err := ParseProxies([]string{bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestLimit(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	refused := 0
	limited := Limit(l, NewClients(1), nil, func(string, error) { refused++ })
	accepted := make(chan net.Conn, 8)
	go func() {
		for {
			conn, err := limited.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	dial()
	first := <-accepted
	// Beyond the bound the newest few stay, as spare ones.
	var spare []net.Conn
	for range spares + 2 {
		conn := dial()
		if spare = append(spare, conn); !Spare(<-accepted) {
			t.Fatal("a connection beyond the bound is not spare")
		}
	}
	dialled := dial() // so that all before have been told of
	<-accepted
	for i, conn := range append(spare, dialled) {
		_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		_, err := conn.Read(make([]byte, 1))
		if ended := !errors.Is(err, os.ErrDeadlineExceeded); ended != (i < 3) {
			t.Errorf("spare connection %d of %d: %v", i, spares+3, err)
		}
	}
	if refused != 3 || Spare(first) {
		t.Errorf("%d were told of, want 3", refused)
	}
	first.Close()
	first.Close() // which counts once
	dial()
	if next := <-accepted; Spare(next) {
		t.Error("the bound is not free again")
	}
}

// TestRoles: a line of the file says what its token may do, and who has it.
func TestRoles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	write(t, file, "0123456789abcdef-all\n0123456789abcdef-gate gate judge\n0123456789abcdef-ann ann review,judge\n0123456789abcdef-op op operate\n")
	tokens, err := OpenTokens(file, quiet)
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]string{"all": "/judge,read,review,operate", "gate": "gate/judge", "ann": "ann/judge,read,review", "op": "op/judge,read,review,operate"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer 0123456789abcdef-"+token)
		b, ok := tokens.Bearer(r)
		var may []string
		for _, role := range []Role{Judge, Read, Review, Operate} {
			if b.May(role) {
				may = append(may, string(role))
			}
		}
		if got := b.Name + "/" + strings.Join(may, ","); !ok || got != want || !b.May("") {
			t.Errorf("%s: %s, want %s", token, got, want)
		}
	}
}

func TestOwnHost(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:8080": true, "127.0.0.1:80": true, "[::1]:80": true, "[::1]": true, "192.0.2.7": true, "LOCALHOST": true,
		"cameras.example": true, "Cameras.example:1": true, "evil.example": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false,
	} {
		r := &http.Request{Host: host}
		if got := OwnHost(r, []string{"cameras.example"}); got != want {
			t.Errorf("%s: %v", host, got)
		}
	}
}

func TestCheckAddress(t *testing.T) {
	for address, want := range map[net.Addr]bool{
		&net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}: true, &net.TCPAddr{IP: net.IPv6loopback}: true, &net.UnixAddr{Name: "x"}: true,
		&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}: false, &net.TCPAddr{IP: net.IPv6unspecified}: false, &net.TCPAddr{}: false,
	} {
		if got := CheckAddress(address) == nil; got != want {
			t.Errorf("%v: %v", address, got)
		}
	}
}

// TestInherited: sockets of systemd are for the process that they were made for.
func TestInherited(t *testing.T) {
	t.Setenv("LISTEN_PID", "1")
	t.Setenv("LISTEN_FDS", "1")
	if all, err := Inherited(); err != nil || all != nil {
		t.Error(all, err)
	}
}

func TestNotify(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Notify("READY=1"); err != nil {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: file, Net: "unixgram"})
	if err != nil && runtime.GOOS == "windows" {
		t.Skip("systemd's sockets are absent on Windows: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", file)
	if err := Notify("READY=1"); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 64)
	n, err := l.Read(text)
	if err != nil || string(text[:n]) != "READY=1" {
		t.Errorf("%q, %v", text[:n], err)
	}
}
