package pki

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"os"
)

// SignClient issues a certificate for a key that is not on this machine: the API
// takes its holder for the user.
func (c *Cluster) SignClient(key crypto.PublicKey, user string, groups ...string) ([]byte, error) {
	return c.signFor(c.ClientCA, key, x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// SignServer issues one with which its holder serves clients of the cluster.
func (c *Cluster) SignServer(key crypto.PublicKey, subject pkix.Name, names []string, addrs []net.IP) ([]byte, error) {
	return c.signFor(c.ServerCA, key, x509.Certificate{
		Subject: subject, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, DNSNames: names, IPAddresses: addrs,
	})
}

func (c *Cluster) signFor(a *Authority, key crypto.PublicKey, template x509.Certificate) ([]byte, error) {
	der, err := a.sign(template, key, c.opts.Now())
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// PEM returns the authority's certificate as its file has it.
func (a *Authority) PEM() ([]byte, error) { return os.ReadFile(a.CertFile) }
