package controlplane

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestSettingsOfUpstreamAreChecked(t *testing.T) {
	for name, tc := range map[string]struct {
		check func([]string) error
		args  []string
		want  string // "" means accepted
	}{
		"known":               {CheckAPIServerArgs, []string{"event-ttl=2h"}, ""},
		"with dashes":         {CheckAPIServerArgs, []string{"--event-ttl=2h"}, ""},
		"unknown":             {CheckAPIServerArgs, []string{"event-tttl=2h"}, `kube-apiserver-arg: there is no setting "event-tttl"`},
		"bad value":           {CheckAPIServerArgs, []string{"event-ttl=soon"}, "kube-apiserver-arg: event-ttl: "},
		"controllers":         {CheckControllerManagerArgs, []string{"node-monitor-grace-period=1m"}, ""},
		"unknown controller":  {CheckControllerManagerArgs, []string{"node-monitor=1m"}, `there is no setting "node-monitor"`},
		"scheduler":           {CheckSchedulerArgs, []string{"kube-api-qps=100"}, ""},
		"unknown of schedule": {CheckSchedulerArgs, []string{"qps=100"}, `kube-scheduler-arg: there is no setting "qps"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.check(tc.args)
			switch {
			case tc.want == "" && err != nil:
				t.Fatal(err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Fatalf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// The order of the groups is what `kubectl get` without a group goes by; a
// built-in group without a priority would vanish from discovery.
func TestBuiltinGroupsComeBeforeOurs(t *testing.T) {
	for gv, priority := range builtinPriorities() {
		if priority.Group <= 1000 {
			t.Errorf("%s has the priority %d of an extension", gv, priority.Group)
		}
	}
}

func TestNetworksInUpstreamsForm(t *testing.T) {
	four, six := netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("fd43::/112")
	for want, networks := range map[string][]netip.Prefix{"10.43.0.0/16": {four}, "fd43::/112": {six}, "fd43::/112,10.43.0.0/16": {six, four}} {
		if got := commaList(networks); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestRangesThatAreNoLongerInTheNetworksAreExplained(t *testing.T) {
	for _, text := range []string{
		"node:edge has an allocated cidr: fd42::/64 at index:1 that does not exist in cluster cidrs configuration",
		"failed to mark cidr[10.42.0.0/24] at idx [0] as occupied for node: edge: cidr 10.42.0.0/24 is out the range of cluster cidr 10.52.0.0/16",
	} {
		if err := explainRanges(errors.New(text)); !strings.Contains(err.Error(), "give it the networks from before") || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v", err)
		}
	}
	other := errors.New("another failure")
	if got := explainRanges(other); !errors.Is(got, other) || got.Error() != other.Error() || explainRanges(nil) != nil {
		t.Errorf("got %v", got)
	}
}
