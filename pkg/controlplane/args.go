package controlplane

import (
	"fmt"
	"net/netip"
	"strings"

	cliflag "k8s.io/component-base/cli/flag"
	cmapp "k8s.io/kubernetes/cmd/kube-controller-manager/app"

	apioptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	cmoptions "k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	scheduleroptions "k8s.io/kubernetes/cmd/kube-scheduler/app/options"
)

// setArgs sets name=value pairs, as the …-arg keys of the configuration have
// them, on upstream's options.
func setArgs(sets cliflag.NamedFlagSets, key string, args []string) error {
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		found := false
		for _, set := range sets.FlagSets {
			if set.Lookup(name) == nil {
				continue
			}
			if err := set.Set(name, value); err != nil {
				return fmt.Errorf("%s: %s: %w", key, name, err)
			}
			found = true
			break
		}
		if !found {
			return fmt.Errorf("%s: there is no setting %q: see the reference of the component for its names", key, name)
		}
	}
	return nil
}

// commaList writes networks as upstream's settings for one or two of them take them.
func commaList(networks []netip.Prefix) string {
	texts := make([]string, len(networks))
	for i, n := range networks {
		texts[i] = n.String()
	}
	return strings.Join(texts, ",")
}

// CheckAPIServerArgs says whether name=value pairs are settings of the API server.
func CheckAPIServerArgs(args []string) error {
	return setArgs(apioptions.NewServerRunOptions().Flags(), "kube-apiserver-arg", args)
}

// CheckControllerManagerArgs is CheckAPIServerArgs for the controller manager.
func CheckControllerManagerArgs(args []string) error {
	opts, err := cmoptions.NewKubeControllerManagerOptions()
	if err != nil {
		return err
	}
	return setArgs(controllerManagerFlags(opts), "kube-controller-manager-arg", args)
}

// CheckSchedulerArgs is CheckAPIServerArgs for the scheduler.
func CheckSchedulerArgs(args []string) error {
	return setArgs(*scheduleroptions.NewOptions().Flags, "kube-scheduler-arg", args)
}

func controllerManagerFlags(opts *cmoptions.KubeControllerManagerOptions) cliflag.NamedFlagSets {
	return opts.Flags(cmapp.KnownControllers(), cmapp.ControllersDisabledByDefault(), cmapp.ControllerAliases())
}
