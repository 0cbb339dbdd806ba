// Package pki makes and keeps the certificate authorities and the leaf
// certificates of a cluster, in process. It owns the folder it is given and
// touches nothing else. Leaves are renewed long before they end; readers that
// watch the files (the API server and client-go do) follow without a restart.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"time"
)

// Lifetimes. Authorities outlive the hardware; leaves last a year and are
// renewed when less than a third of it is left.
const (
	authorityLife = 20 * 365 * 24 * time.Hour
	leafLife      = 365 * 24 * time.Hour
	renewBefore   = leafLife / 3
)

// notBefore dates every certificate back to the year that Kombi began, so that
// a machine without a clock battery, which may start years in the past, still
// accepts what it made while the clock was right.
var notBefore = time.Date(2024, time.January, 1, 0, 0, 0, 0, time.UTC)

// Authority is a certificate authority: it signs leaves.
type Authority struct {
	// CertFile and KeyFile are where the authority is kept, PEM encoded.
	CertFile, KeyFile string

	cert *x509.Certificate
	key  crypto.Signer
}

// loadAuthority reads an authority, or makes it when neither of its files is
// there. One file without the other is refused: making a new pair would lock
// out everything that the old one signed.
func loadAuthority(certFile, keyFile, name string, now time.Time) (*Authority, error) {
	a := &Authority{CertFile: certFile, KeyFile: keyFile}
	certPEM, certErr := os.ReadFile(certFile)
	keyPEM, keyErr := os.ReadFile(keyFile)
	switch {
	case os.IsNotExist(certErr) && os.IsNotExist(keyErr):
		return a, a.create(name, now)
	case certErr != nil:
		return nil, fmt.Errorf("the authority's certificate cannot be read while its key is there: %w; put the certificate back from a backup", certErr)
	case keyErr != nil:
		return nil, fmt.Errorf("the authority's key cannot be read while its certificate is there: %w; put the key back from a backup", keyErr)
	}
	var err error
	if a.cert, err = parseCertificate(certPEM); err != nil {
		return nil, fmt.Errorf("%s: %w; put the file back from a backup", certFile, err)
	}
	if a.key, err = parseKey(keyPEM); err != nil {
		return nil, fmt.Errorf("%s: %w; put the file back from a backup", keyFile, err)
	}
	if !publicKeysEqual(a.cert.PublicKey, a.key.Public()) {
		return nil, fmt.Errorf("%s and %s do not belong together: put both back from the same backup", certFile, keyFile)
	}
	if now.After(a.cert.NotAfter) {
		return nil, fmt.Errorf("the authority %s ended on %s and the clock says %s: set the clock, or replace the authority",
			certFile, a.cert.NotAfter.Format(time.DateOnly), now.Format(time.DateOnly))
	}
	return a, nil
}

func (a *Authority) create(name string, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := newSerial()
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: fmt.Sprintf("%s@%d", name, now.Unix())},
		NotBefore:             notBefore,
		NotAfter:              latest(now, notBefore).Add(authorityLife),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	a.key = key
	// The key first: a certificate without its key is reported as a loss.
	if err := writeKey(a.KeyFile, key); err != nil {
		return err
	}
	return writePEM(a.CertFile, "CERTIFICATE", der)
}

// Certificate returns the authority's own certificate.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// sign issues a leaf for the public key.
func (a *Authority) sign(template x509.Certificate, public crypto.PublicKey, now time.Time) ([]byte, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore = notBefore
	template.NotAfter = earliest(latest(now, notBefore).Add(leafLife), a.cert.NotAfter)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid = true
	return x509.CreateCertificate(rand.Reader, &template, a.cert, public, a.key)
}

func newSerial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func publicKeysEqual(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}

func parseCertificate(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("no certificate in it")
	}
	return x509.ParseCertificate(block.Bytes)
}

func parseKey(data []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("no key in it")
	}
	if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("no usable key in it: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T cannot sign", key)
	}
	return signer, nil
}
