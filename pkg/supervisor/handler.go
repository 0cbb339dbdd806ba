package supervisor

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Signer issues certificates of the cluster.
type Signer interface {
	// SignClient issues a certificate that the API takes for the user.
	SignClient(key crypto.PublicKey, user string, groups ...string) ([]byte, error)
	// SignServer issues one that clients of the cluster trust.
	SignServer(key crypto.PublicKey, subject pkix.Name, names []string, addrs []net.IP) ([]byte, error)
}

// Identities remembers which key belongs to which node.
type Identities interface {
	// Claim binds the name to the key, or returns why it cannot: another machine has it.
	Claim(ctx context.Context, nodeName, fingerprint string) error
}

// Options configure the handler.
type Options struct {
	Log *slog.Logger
	// Secret returns the secret part of the token.
	Secret func() (string, error)
	// ServerCA and ClientCA are the authorities' certificates, PEM.
	ServerCA, ClientCA []byte
	Signer             Signer
	Identities         Identities
	Cluster            Cluster
}

// Handler answers joining machines and gives everything else to next.
func Handler(opts Options, next http.Handler) http.Handler {
	h := &handler{opts: opts, next: next}
	return h
}

type handler struct {
	opts Options
	next http.Handler
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case !strings.HasPrefix(r.URL.Path, prefix):
		h.next.ServeHTTP(w, r)
	case r.URL.Path == caPath && r.Method == http.MethodGet:
		// Whoever asks cannot know yet whom to trust; it compares with the token.
		w.Header().Set("Content-Type", "application/x-pem-file")
		_, _ = w.Write(h.opts.ServerCA)
	case r.URL.Path == joinPath && r.Method == http.MethodPost:
		h.join(w, r)
	default:
		refuse(w, http.StatusNotFound, "there is nothing here: this server and the machine that joins may be of different versions")
	}
}

func refuse(w http.ResponseWriter, status int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(refusal{Reason: reason})
}

func (h *handler) join(w http.ResponseWriter, r *http.Request) {
	secret, err := h.opts.Secret()
	if err != nil {
		refuse(w, http.StatusInternalServerError, "the server cannot read its token: "+err.Error())
		return
	}
	given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	// Hashes have one length, so the comparison tells nothing.
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(secret))
	if subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
		time.Sleep(time.Second) // for those who guess
		h.opts.Log.Warn("a machine with a wrong token wants to join", "from", r.RemoteAddr)
		refuse(w, http.StatusUnauthorized, "the token is wrong: take the one that `kombi token` prints on the server")
		return
	}
	var ask joinRequest
	if err := json.NewDecoder(io.LimitReader(r.Body, maxAsk)).Decode(&ask); err != nil {
		refuse(w, http.StatusBadRequest, "the request cannot be read: "+err.Error())
		return
	}
	answer, err := h.admit(r.Context(), &ask)
	if err != nil {
		status := http.StatusInternalServerError
		var no *Refused
		if errors.As(err, &no) {
			status = http.StatusForbidden
		}
		h.opts.Log.Warn("a machine cannot join", "node", ask.NodeName, "from", r.RemoteAddr, "error", err)
		refuse(w, status, err.Error())
		return
	}
	h.opts.Log.Info("a machine joins", "node", ask.NodeName, "from", r.RemoteAddr, "version", ask.Version)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// Refused is the reason why a machine may not join.
type Refused struct{ Reason string }

func (r *Refused) Error() string { return r.Reason }

func (h *handler) admit(ctx context.Context, ask *joinRequest) (*joinAnswer, error) {
	if problems := validation.IsDNS1123Subdomain(ask.NodeName); len(problems) > 0 {
		return nil, &Refused{fmt.Sprintf("%q cannot be the name of a node: set node-name", ask.NodeName)}
	}
	keys := map[string]crypto.PublicKey{}
	for name, der := range ask.Requests {
		csr, err := x509.ParseCertificateRequest(der)
		if err == nil {
			err = csr.CheckSignature() // it has the key
		}
		if err != nil {
			return nil, &Refused{fmt.Sprintf("the certificate request for %s is not valid: %v", name, err)}
		}
		keys[name] = csr.PublicKey
	}
	own := keys[KubeletClient]
	if own == nil {
		return nil, &Refused{"there is no certificate request for the kubelet"}
	}
	raw, err := x509.MarshalPKIXPublicKey(own)
	if err != nil {
		return nil, &Refused{"the kubelet's key cannot be read: " + err.Error()}
	}
	if err := h.opts.Identities.Claim(ctx, ask.NodeName, fmt.Sprintf("%x", sha256.Sum256(raw))); err != nil {
		return nil, err
	}
	answer := &joinAnswer{ClientCA: h.opts.ClientCA, Certificates: map[string][]byte{}, Cluster: h.opts.Cluster}
	for name, key := range keys {
		cert, err := h.sign(name, key, ask)
		if err != nil {
			return nil, err
		}
		answer.Certificates[name] = cert
	}
	return answer, nil
}

// sign decides what an identity of a node may be used for.
func (h *handler) sign(name string, key crypto.PublicKey, ask *joinRequest) ([]byte, error) {
	node := "system:node:" + ask.NodeName
	switch name {
	case KubeletClient:
		return h.opts.Signer.SignClient(key, node, "system:nodes")
	case KubeletServing:
		var addrs []net.IP
		for _, a := range append([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, ask.Addresses...) {
			addrs = append(addrs, a.AsSlice())
		}
		return h.opts.Signer.SignServer(key, pkix.Name{CommonName: node, Organization: []string{"system:nodes"}},
			[]string{ask.NodeName, "localhost"}, addrs)
	case Network, DNS, Storage:
		return h.opts.Signer.SignClient(key, "system:kombi:"+name)
	}
	return nil, &Refused{fmt.Sprintf("this server knows no identity %q: it may be older than the machine that joins", name)}
}
