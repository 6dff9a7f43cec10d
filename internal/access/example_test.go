package access_test

import (
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/internal/access"
)

// The tokens of a file let requests in.
func ExampleTokens() {
	dir, err := os.MkdirTemp("", "access")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "tokens")
	if err := os.WriteFile(file, []byte("# a token, a name, roles\n3f9c0a1be7d24c55 gate judge\n"), 0o600); err != nil {
		log.Fatal(err)
	}
	tokens, err := access.OpenTokens(file, slog.New(slog.DiscardHandler))
	if err != nil {
		log.Fatal(err)
	}
	for _, token := range []string{"3f9c0a1be7d24c55", "guessed"} {
		r := httptest.NewRequest("POST", "/v1/detect", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		who, ok := tokens.Bearer(r)
		fmt.Println(token, ok, who.Name, ok && who.May(access.Operate))
	}
	// Output:
	// 3f9c0a1be7d24c55 true gate false
	// guessed false  false
}

// Behind a proxy, a client is who the proxy was asked by, and not who it says it is.
func ExampleProxies_Client() {
	proxies, err := access.ParseProxies([]string{"10.0.0.0/8"})
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest("POST", "/v1/detect", nil)
	r.RemoteAddr = "10.1.2.3:4567"
	r.Header.Set("X-Forwarded-For", "192.0.2.1, 198.51.100.7") // the first is what the client wrote
	fmt.Println(proxies.Client(r))
	r.RemoteAddr = "203.0.113.9:4567" // no proxy of ours
	fmt.Println(proxies.Client(r))
	// Output:
	// 198.51.100.7:0
	// 203.0.113.9:4567
}

// A service that others can reach needs a token.
func ExampleCheckAddress() {
	fmt.Println(access.CheckAddress(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8080}))
	fmt.Println(access.CheckAddress(&net.TCPAddr{IP: net.IPv4zero, Port: 8080}) == access.ErrOpenToAll)
	// Output:
	// <nil>
	// true
}
