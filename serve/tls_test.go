package serve

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/serve/internal/servetest"
)

// TestTLS: with a certificate the service answers over TLS, by HTTP/2 too, and not
// without it.
func TestTLS(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true}
	public, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir, roots := t.TempDir(), x509.NewCertPool()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: public})
	roots.AppendCertsFromPEM(text)
	for file, data := range map[string][]byte{cert: text, key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(t.Context(), Options{
		Detectors: Detectors{Detectors: []Named{{Name: "main", File: servetest.Detector(t, 1)}}},
		CertFile:  cert, KeyFile: key,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	address, stop := listening(t, s)
	for _, http2 := range []bool{true, false} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost"}, ForceAttemptHTTP2: http2}}
		response, err := client.Post("https://"+address+"/v1/detect", "image/png", bytes.NewReader(servetest.Image(0, 7)))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != 200 || response.ProtoAtLeast(2, 0) != http2 || response.TLS.Version != tls.VersionTLS13 || response.Header.Get("Strict-Transport-Security") == "" {
			t.Errorf("%s %s %v", response.Proto, response.Status, response.Header)
		}
		client.CloseIdleConnections()
	}
	if response, err := http.Get("http://" + address + "/healthz"); err == nil {
		response.Body.Close()
		if response.StatusCode == 200 {
			t.Error("it answers without TLS")
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
