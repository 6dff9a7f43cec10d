package access

import (
	"crypto/tls"
	"log/slog"
)

// Certificate is a certificate with its key, from files that are read again when they
// change. While the new ones do not fit together, the old ones stay.
type Certificate struct{ reread[tls.Certificate] }

// OpenCertificate reads both files.
func OpenCertificate(cert, key string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{reread[tls.Certificate]{files: []string{cert, key}}}
	c.read = func() (tls.Certificate, error) { return tls.LoadX509KeyPair(cert, key) }
	c.changed = func(err error) {
		if err != nil {
			log.Error("the new certificate cannot be read, and the old one stays", "error", err)
		} else {
			log.Info("the certificate was read again")
		}
	}
	return c, c.open()
}

// Config is that of a server with this certificate.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		now := c.get()
		return &now, nil
	}}
}
