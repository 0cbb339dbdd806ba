package node

import (
	"github.com/spf13/pflag"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
)

// kubeletFlags returns upstream's flags bound to the options.
func kubeletFlags(server *options.KubeletServer) *pflag.FlagSet {
	flags := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	server.KubeletFlags.AddFlags(flags)
	options.AddKubeletConfigFlags(flags, &server.KubeletConfiguration)
	return flags
}
