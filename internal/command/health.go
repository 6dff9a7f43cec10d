package command

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

var _ = declare("health", 80, "[--address ADDRESS] [flags]", "Ask a service on this machine whether it is ready",
	`Asks mlrbfn serve at /readyz whether it answers requests, and ends with exit code 0 or 1. It is for health checks in containers, which need no other program then.`, addHealth)

func addHealth(c *command) {
	address := c.String("address", "127.0.0.1:8080", "`ADDRESS` of the service, or unix:FILE, as its --listen says")
	secure := c.Bool("tls", false, "the service has a certificate (which is not checked: no secret is sent)")
	timeout := c.Duration("timeout", 5*time.Second, "give up after `TIME`")
	c.run = func(ctx context.Context, s Streams) error {
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		if err := ready(ctx, *address, *secure); err != nil {
			return fmt.Errorf("%s: %w", *address, err)
		}
		fmt.Fprintln(s.Out, "ready")
		return nil
	}
}

// ready asks a service whether it is ready. An address without a host is this machine.
func ready(ctx context.Context, address string, secure bool) error {
	network, scheme := "tcp", "http"
	if file, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", file
	} else if host, port, err := net.SplitHostPort(address); err == nil && (host == "" || net.ParseIP(host).IsUnspecified()) {
		address = net.JoinHostPort("localhost", port)
	}
	if secure {
		scheme = "https"
	}
	client := http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, address)
			},
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://localhost/readyz", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(body)))
	}
	return err
}
