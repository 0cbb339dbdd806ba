package supervisor

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kombi-k8s/kombi/pkg/pki"
)

// Machine is what a joining machine says of itself.
type Machine struct {
	// Server is the URL of the cluster's API, Token what `kombi token` prints there.
	Server string
	Token  Token
	// Dir keeps keys, certificates and what the cluster said; mode 0700.
	Dir string
	// NodeName and Addresses are how the cluster knows it.
	NodeName  string
	Addresses []netip.Addr
	Version   string
}

// Membership is what a machine got by joining. It outlives the process: a node
// starts without its server, too.
type Membership struct {
	Cluster Cluster
	dir     string
	server  string
}

var identities = []string{KubeletClient, KubeletServing, Network, DNS, Storage}

// Join asks the server for certificates and keeps them. While the server cannot be
// reached, a membership that was kept before is good enough.
func Join(ctx context.Context, m Machine) (*Membership, error) {
	if err := os.MkdirAll(m.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the folder for the node's identity: %w", err)
	}
	membership := &Membership{dir: m.Dir, server: m.Server}
	err := m.join(ctx, membership)
	var unreachable *unreachableError
	if errors.As(err, &unreachable) && membership.load() == nil {
		return membership, nil
	}
	return membership, err
}

// unreachableError says that nobody answered.
type unreachableError struct{ cause error }

func (e *unreachableError) Error() string { return e.cause.Error() }
func (e *unreachableError) Unwrap() error { return e.cause }

func (m Machine) join(ctx context.Context, membership *Membership) error {
	ca, pool, err := m.authority(ctx)
	if err != nil {
		return err
	}
	ask := joinRequest{NodeName: m.NodeName, Addresses: m.Addresses, Version: m.Version, Requests: map[string][]byte{}}
	keys := map[string]*ecdsa.PrivateKey{}
	for _, name := range identities {
		key, err := m.key(name)
		if err != nil {
			return err
		}
		keys[name] = key
		if ask.Requests[name], err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key); err != nil {
			return err
		}
	}
	body, err := json.Marshal(ask)
	if err != nil {
		return err
	}
	raw, err := m.call(ctx, pool, http.MethodPost, joinPath, body)
	if err != nil {
		return err
	}
	var answer joinAnswer
	if err := json.Unmarshal(raw, &answer); err != nil {
		return fmt.Errorf("the server's answer cannot be read: %w", err)
	}
	return membership.keep(ca, &answer, keys)
}

// authority fetches the cluster's authority and checks it against the token.
func (m Machine) authority(ctx context.Context) ([]byte, *x509.CertPool, error) {
	ca, err := m.call(ctx, nil, http.MethodGet, caPath, nil)
	if err != nil {
		return nil, nil, err
	}
	pool, err := m.Token.pinned(ca)
	if err != nil {
		return nil, nil, fmt.Errorf("this machine does not join %s: %w", m.Server, err)
	}
	return ca, pool, nil
}

// call makes a request. Without a pool nothing is known of the server yet, and no
// secret is sent.
func (m Machine) call(ctx context.Context, pool *x509.CertPool, method, path string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, m.Server+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("server %q is not a URL: write https://ADDRESS:6443", m.Server)
	}
	settings := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	if pool == nil {
		settings.InsecureSkipVerify = true //nolint:gosec // the answer is compared with the token's fingerprint
	} else {
		r.Header.Set("Authorization", "Bearer "+m.Token.Secret)
	}
	client := &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{TLSClientConfig: settings, Proxy: nil, DisableKeepAlives: true}}
	answer, err := client.Do(r)
	if err != nil {
		var cert *tls.CertificateVerificationError
		if errors.As(err, &cert) {
			return nil, fmt.Errorf("the server at %s cannot prove that it is the cluster's: %w", m.Server, cert.Err)
		}
		return nil, &unreachableError{fmt.Errorf("the server %s cannot be reached: %w; check the address, and that its port is open", m.Server, err)}
	}
	defer func() { _ = answer.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return nil, &unreachableError{err}
	}
	if answer.StatusCode == http.StatusOK {
		return raw, nil
	}
	var no refusal
	if json.Unmarshal(raw, &no) != nil || no.Reason == "" {
		err := fmt.Errorf("the server %s answers with status %d: is it a Kombi server?", m.Server, answer.StatusCode)
		if answer.StatusCode >= 500 {
			err = &unreachableError{err}
		}
		return nil, err
	}
	return nil, fmt.Errorf("the server %s refuses this machine: %s", m.Server, no.Reason)
}

// key reads the key of an identity, or makes it. The kubelet's is what makes this
// machine the node that it is.
func (m Machine) key(name string) (*ecdsa.PrivateKey, error) {
	path := filepath.Join(m.Dir, name+".key")
	if raw, err := os.ReadFile(path); err == nil {
		if block, _ := pem.Decode(raw); block != nil {
			if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
				return key, nil
			}
		}
		return nil, fmt.Errorf("%s is damaged: put it back from a backup, or delete the node and remove the file", path)
	} else if !os.IsNotExist(err) {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, pki.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}

const clusterFile = "cluster.json"

// keep writes what the server gave. The cluster's file goes last: with it the
// membership is whole.
func (m *Membership) keep(ca []byte, answer *joinAnswer, keys map[string]*ecdsa.PrivateKey) error {
	files := map[string][]byte{"server-ca.crt": ca, "client-ca.crt": answer.ClientCA}
	for name, key := range keys {
		cert := answer.Certificates[name]
		if err := matches(cert, key.Public()); err != nil {
			return fmt.Errorf("the server's certificate for %s is of no use: %w", name, err)
		}
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			return err
		}
		// Key and certificate in one file change in one step.
		files[name+".pem"] = append(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), cert...)
	}
	for name, content := range files {
		if err := pki.WriteFile(filepath.Join(m.dir, name), content); err != nil {
			return err
		}
	}
	m.Cluster = answer.Cluster
	raw, err := json.MarshalIndent(answer.Cluster, "", "  ")
	if err != nil {
		return err
	}
	return pki.WriteFile(filepath.Join(m.dir, clusterFile), raw)
}

// Load returns the membership that was kept in dir. The error is fs.ErrNotExist where
// no machine joined.
func Load(dir string) (*Membership, error) {
	m := &Membership{dir: dir}
	return m, m.load()
}

func (m *Membership) load() error {
	raw, err := os.ReadFile(filepath.Join(m.dir, clusterFile))
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, &m.Cluster)
}

func matches(certPEM []byte, key crypto.PublicKey) error {
	block, _ := pem.Decode(certPEM)
	if block == nil {
		return errors.New("it is none")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	if own, ok := key.(*ecdsa.PublicKey); !ok || !own.Equal(cert.PublicKey) {
		return errors.New("it is for another key")
	}
	return nil
}

// File returns the file with the key and the certificate of an identity.
func (m *Membership) File(identity string) string { return filepath.Join(m.dir, identity+".pem") }

// ServerCA and ClientCA are the files of the cluster's authorities.
func (m *Membership) ServerCA() string { return filepath.Join(m.dir, "server-ca.crt") }

// ClientCA signs what the API server shows to the kubelet.
func (m *Membership) ClientCA() string { return filepath.Join(m.dir, "client-ca.crt") }

// Client returns the connection settings of an identity towards the API.
func (m *Membership) Client(identity string) *rest.Config {
	return &rest.Config{
		Host: m.server,
		TLSClientConfig: rest.TLSClientConfig{
			CertFile: m.File(identity), KeyFile: m.File(identity), CAFile: m.ServerCA(),
		},
	}
}
