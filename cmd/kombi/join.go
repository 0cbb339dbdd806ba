package main

import (
	"net/http"
	"os"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kombi-k8s/kombi/pkg/supervisor"
)

// joinAPI answers machines that want to become nodes, in front of the API.
func (w *wiring) joinAPI(admin *rest.Config) (func(http.Handler) http.Handler, error) {
	client, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return nil, err
	}
	serverCA, err := w.certs.ServerCA.PEM()
	if err != nil {
		return nil, err
	}
	clientCA, err := w.certs.ClientCA.PEM()
	if err != nil {
		return nil, err
	}
	c := w.config
	options := supervisor.Options{
		Log: w.log, ServerCA: serverCA, ClientCA: clientCA, Signer: w.certs, Identities: supervisor.Secrets{Client: client},
		// It is read each time, so that a new token needs no restart.
		Secret: func() (string, error) {
			raw, err := os.ReadFile(w.paths.ServerToken)
			return strings.TrimSpace(string(raw)), err
		},
		Cluster: supervisor.Cluster{
			ClusterCIDRs: c.ClusterCIDRs, ServiceCIDRs: c.ServiceCIDRs, ClusterDNS: c.ClusterDNS, ClusterDomain: c.ClusterDomain,
		},
	}
	return func(next http.Handler) http.Handler { return supervisor.Handler(options, next) }, nil
}
