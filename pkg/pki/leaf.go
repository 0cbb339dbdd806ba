package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"os"
	"slices"
	"time"
)

// Leaf is a certificate that an authority issues, with its key, in one or two
// files.
type Leaf struct {
	// CertFile and KeyFile are where it is kept, PEM encoded.
	CertFile, KeyFile string
	// Subject names the holder: the user and its groups for a client.
	Subject pkix.Name
	// Usages are the extended key usages.
	Usages []x509.ExtKeyUsage
	// DNSNames and IPs are the names a server is reached by.
	DNSNames []string
	IPs      []net.IP

	authority *Authority
}

// ensure renews the leaf unless what is there is good: signed by the authority
// that is in force, for the same holder and names, and not near its end. It
// says whether the files changed.
func (l *Leaf) ensure(now time.Time) (bool, error) {
	if l.good(now) {
		return false, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return false, err
	}
	der, err := l.authority.sign(x509.Certificate{
		Subject:     l.Subject,
		ExtKeyUsage: l.Usages,
		DNSNames:    l.DNSNames,
		IPAddresses: l.IPs,
	}, key.Public(), now)
	if err != nil {
		return false, err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return false, err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	if l.CertFile == l.KeyFile {
		return true, WriteFile(l.CertFile, append(keyPEM, cert...))
	}
	// Between the two writes the pair does not match; a start that finds it so
	// makes a new one, and readers that watch the files keep the old pair.
	if err := WriteFile(l.KeyFile, keyPEM); err != nil {
		return false, err
	}
	return true, WriteFile(l.CertFile, cert)
}

func (l *Leaf) good(now time.Time) bool {
	certPEM, err := os.ReadFile(l.CertFile)
	if err != nil {
		return false
	}
	if l.CertFile == l.KeyFile {
		if i := bytes.Index(certPEM, []byte("-----BEGIN CERTIFICATE")); i >= 0 {
			certPEM = certPEM[i:]
		}
	}
	cert, err := parseCertificate(certPEM)
	if err != nil {
		return false
	}
	keyPEM, err := os.ReadFile(l.KeyFile)
	if err != nil {
		return false
	}
	key, err := parseKey(keyPEM)
	if err != nil || !publicKeysEqual(cert.PublicKey, key.Public()) {
		return false
	}
	return cert.CheckSignatureFrom(l.authority.cert) == nil &&
		now.Add(renewBefore).Before(cert.NotAfter) &&
		cert.Subject.CommonName == l.Subject.CommonName &&
		slices.Equal(sorted(cert.Subject.Organization), sorted(l.Subject.Organization)) &&
		slices.Equal(sorted(cert.DNSNames), sorted(l.DNSNames)) &&
		slices.EqualFunc(sortedIPs(cert.IPAddresses), sortedIPs(l.IPs), net.IP.Equal)
}

func sorted(s []string) []string {
	return slices.Sorted(slices.Values(s))
}

func sortedIPs(ips []net.IP) []net.IP {
	return slices.SortedFunc(slices.Values(ips), func(a, b net.IP) int {
		return bytes.Compare(a.To16(), b.To16())
	})
}
