// Package kubeconfig writes kubeconfig files.
package kubeconfig

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kombi-k8s/kombi/pkg/pki"
)

// name of the one cluster, user and context in the files that Kombi writes.
const name = "kombi"

// WriteReferring writes a kubeconfig that names the certificate files of the
// connection, so that its reader follows when they are renewed. Mode 0600; an
// equal file is left alone.
func WriteReferring(path string, config *rest.Config) error {
	return write(path, 0o600, clientcmdapi.Cluster{Server: config.Host, CertificateAuthority: config.CAFile},
		clientcmdapi.AuthInfo{ClientCertificate: config.CertFile, ClientKey: config.KeyFile})
}

// WriteEmbedding writes a kubeconfig that holds everything it needs, to be
// copied to other machines. An equal file is left alone.
func WriteEmbedding(path string, mode fs.FileMode, config *rest.Config) error {
	ca, err := os.ReadFile(config.CAFile)
	if err != nil {
		return err
	}
	both, err := os.ReadFile(config.CertFile)
	if err != nil {
		return err
	}
	key, cert := split(both)
	return write(path, mode, clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: ca},
		clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
}

// split takes a file of several PEM blocks apart into keys and certificates.
func split(data []byte) (key, cert []byte) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return key, cert
		}
		if block.Type == "CERTIFICATE" {
			cert = append(cert, pem.EncodeToMemory(block)...)
		} else {
			key = append(key, pem.EncodeToMemory(block)...)
		}
	}
}

func write(path string, mode fs.FileMode, cluster clientcmdapi.Cluster, user clientcmdapi.AuthInfo) error {
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &cluster
	config.AuthInfos[name] = &user
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	data, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return os.Chmod(path, mode)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("cannot write the kubeconfig: %w", err)
	}
	if err := pki.WriteFile(path, data); err != nil {
		return fmt.Errorf("cannot write the kubeconfig: %w", err)
	}
	return os.Chmod(path, mode)
}
