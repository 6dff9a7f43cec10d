package command

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestHealth: the exit code says what /readyz answers. TestServe asks a real service.
func TestHealth(t *testing.T) {
	status := http.StatusOK
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(status)
	})
	plain, secure := httptest.NewServer(handler), httptest.NewUnstartedServer(handler)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer plain.Close()
	defer secure.Close()
	address := func(s *httptest.Server) string { return s.Listener.Addr().String() }
	_, port, _ := strings.Cut(address(plain), ":")
	for _, args := range [][]string{{"--address", address(plain)}, {"--address", ":" + port}, {"--tls", "--address", address(secure)}} {
		if out, _ := call(t, 0, append([]string{"health"}, args...)...); out != "ready\n" {
			t.Errorf("%s prints %q", args, out)
		}
	}
	fails(t, address(secure), "health", "--address", address(secure)) // without --tls
	status = http.StatusServiceUnavailable
	fails(t, "503", "health", "--address", address(plain))
	status = http.StatusTemporaryRedirect
	fails(t, "307", "health", "--address", address(plain))
	plain.Close()
	fails(t, "refused", "health", "--address", address(plain))
	refused(t, "argument", "health", "x")
}
