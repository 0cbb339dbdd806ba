package supervisor

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// tokenPrefix starts tokens that pin the authority, as k3s writes them.
const tokenPrefix = "K10"

// Token is the secret with which machines join, and the fingerprint of the
// authority that the server must have.
type Token struct {
	// Fingerprint is the SHA-256 of the authority's certificate, DER.
	Fingerprint [sha256.Size]byte
	Secret      string
}

// FormatToken puts the parts together.
func FormatToken(ca []byte, secret string) (string, error) {
	block, _ := pem.Decode(ca)
	if block == nil {
		return "", errors.New("the authority's file holds no certificate")
	}
	return fmt.Sprintf("%s%x::server:%s", tokenPrefix, sha256.Sum256(block.Bytes), secret), nil
}

// ParseToken reads a token that pins the authority.
func ParseToken(s string) (Token, error) {
	const next = "take the whole line that `kombi token` prints on the server"
	rest, ok := strings.CutPrefix(strings.TrimSpace(s), tokenPrefix)
	if !ok {
		return Token{}, fmt.Errorf("the token has no fingerprint of the cluster, so this machine could be led to another one: %s", next)
	}
	print, credentials, ok := strings.Cut(rest, "::")
	raw, err := hex.DecodeString(print)
	if !ok || err != nil || len(raw) != sha256.Size {
		return Token{}, fmt.Errorf("the token's fingerprint is damaged: %s", next)
	}
	_, secret, ok := strings.Cut(credentials, ":")
	if !ok || secret == "" {
		return Token{}, fmt.Errorf("the token ends too early: %s", next)
	}
	return Token{Fingerprint: [sha256.Size]byte(raw), Secret: secret}, nil
}

// pinned returns the authority of the answer if it is the one of the token.
func (t Token) pinned(ca []byte) (*x509.CertPool, error) {
	block, _ := pem.Decode(ca)
	if block == nil {
		return nil, errors.New("the server answers with something that is no certificate: is it a Kombi server?")
	}
	if sha256.Sum256(block.Bytes) != t.Fingerprint {
		return nil, errors.New("the server has another certificate authority than the token says: the token is of another cluster, or somebody else answers at this address")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the server's certificate authority cannot be read: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool, nil
}
