// Package signature signs files and checks their signatures in the format of
// minisign (https://jedisct1.github.io/minisign), so that its program makes and
// checks the same ones.
package signature

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"aead.dev/minisign"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// Suffix is the extension of a signature file.
const Suffix = ".minisig"

// ErrSignature is wrapped by the error of a file without a valid signature.
var ErrSignature = errors.New("no valid signature")

// maxKey and maxSignature bound files of keys and signatures, in bytes.
const maxKey, maxSignature = 1 << 12, 1 << 16

// PublicKey reads a public key, or the file of one.
func PublicKey(text string) (key minisign.PublicKey, err error) {
	if key.UnmarshalText([]byte(text)) == nil {
		return key, nil
	}
	data, err := disk.ReadFile(text, maxKey)
	if err == nil {
		err = key.UnmarshalText(data)
	}
	if err != nil {
		return key, fmt.Errorf("%q is neither a public key of minisign nor a file with one: %w", text, err)
	}
	return key, nil
}

// ReadFile reads a file of up to limit bytes that has a valid signature by the key
// beside it.
func ReadFile(path string, limit int64, key minisign.PublicKey) ([]byte, error) {
	text, err := disk.ReadFile(path+Suffix, maxSignature)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSignature, err)
	}
	var s minisign.Signature
	if err := s.UnmarshalText(text); err != nil {
		return nil, fmt.Errorf("%w: %s%s: %w", ErrSignature, path, Suffix, err)
	}
	switch {
	case s.Algorithm != minisign.HashEdDSA:
		return nil, fmt.Errorf("%w: that in %s%s is of an old kind; sign it anew", ErrSignature, path, Suffix)
	case s.KeyID != key.ID():
		return nil, fmt.Errorf("%w: that in %s%s is by the key %016X, not by %016X", ErrSignature, path, Suffix, s.KeyID, key.ID())
	}
	data, err := disk.ReadFile(path, limit)
	if err != nil {
		return nil, err
	}
	if !minisign.Verify(key, data, text) {
		return nil, fmt.Errorf("%w: that in %s%s is of another file, or altered", ErrSignature, path, Suffix)
	}
	return data, nil
}

// Sign returns the signature of what r has by a secret key, in the form of its
// file, and the public key. The comment is signed too. Password is asked for where
// the key is encrypted.
func Sign(r io.Reader, key []byte, password func() (string, error), comment string) ([]byte, minisign.PublicKey, error) {
	var secret minisign.PrivateKey
	err := secret.UnmarshalText(bytes.TrimSpace(key))
	if minisign.IsEncrypted(bytes.TrimSpace(key)) {
		var text string
		if text, err = password(); err == nil {
			if secret, err = minisign.DecryptKey(text, bytes.TrimSpace(key)); err != nil {
				err = errors.New("the password is wrong, or the key is damaged")
			}
		}
	}
	public := secret.Public().(minisign.PublicKey)
	if err != nil {
		return nil, public, err
	}
	hashed := minisign.NewReader(r)
	if _, err := io.Copy(io.Discard, hashed); err != nil {
		return nil, public, err
	}
	return hashed.SignWithComments(secret, comment, "signature from minisign secret key"), public, nil
}
