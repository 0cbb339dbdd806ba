package main

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kombi-k8s/kombi/pkg/controlplane"
	"github.com/kombi-k8s/kombi/pkg/node"
	"github.com/kombi-k8s/kombi/pkg/pki"
)

// ensureToken writes the configured join token, or makes one at the first start.
func (w *wiring) ensureToken() error {
	token, err := w.config.ReadToken()
	if err != nil {
		return err
	}
	stored, err := os.ReadFile(w.paths.ServerToken)
	switch {
	case err == nil && (token == "" || token == strings.TrimSpace(string(stored))):
		return nil
	case err != nil && !os.IsNotExist(err):
		return err
	case token == "":
		secret := make([]byte, 16)
		if _, err := rand.Read(secret); err != nil {
			return err
		}
		token = hex.EncodeToString(secret)
	}
	return pki.WriteFile(w.paths.ServerToken, []byte(token+"\n"))
}

// checkArg judges one setting of an …-arg key.
func checkArg(component, name, value string) error {
	args := []string{name + "=" + value}
	switch component {
	case "kubelet":
		return node.CheckKubeletArgs(args)
	case "kube-apiserver":
		return controlplane.CheckAPIServerArgs(args)
	case "kube-controller-manager":
		return controlplane.CheckControllerManagerArgs(args)
	case "kube-scheduler":
		return controlplane.CheckSchedulerArgs(args)
	}
	return nil
}

func parseLabels(list []string) (map[string]string, error) {
	labels := make(map[string]string, len(list))
	for _, l := range list {
		key, value, ok := strings.Cut(l, "=")
		if !ok {
			return nil, fmt.Errorf("node-label %q has no value: write key=value", l)
		}
		labels[key] = value
	}
	return labels, nil
}

// parseTaints reads key=value:effect and key:effect.
func parseTaints(list []string) ([]corev1.Taint, error) {
	var taints []corev1.Taint
	for _, t := range list {
		pair, effect, ok := strings.Cut(t, ":")
		if !ok {
			return nil, fmt.Errorf("node-taint %q has no effect: write key=value:NoSchedule", t)
		}
		key, value, _ := strings.Cut(pair, "=")
		taints = append(taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return taints, nil
}
