package access

import (
	"crypto/tls"
	"log/slog"
	"sync"
	"time"
)

// Certificate is a certificate with its key, from files that are read again when they
// change. While the new ones do not fit together, the old ones stay.
type Certificate struct {
	cert, key string
	log       *slog.Logger
	mu        sync.Mutex
	checked   time.Time
	stamp     string
	now       *tls.Certificate
}

// OpenCertificate reads both files.
func OpenCertificate(cert, key string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{cert: cert, key: key, log: log, checked: time.Now(), stamp: stampOf(cert, key)}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	c.now = &pair
	return c, nil
}

// Config is that of a server with this certificate.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get(), nil }}
}

func (c *Certificate) get() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.checked) < recheck {
		return c.now
	}
	c.checked = time.Now()
	if stamp := stampOf(c.cert, c.key); stamp != c.stamp {
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			c.log.Error("the new certificate cannot be read, and the old one stays", "error", err)
			return c.now
		}
		c.stamp, c.now = stamp, &pair
		c.log.Info("the certificate was read again")
	}
	return c.now
}
