// Package manifests holds what Kombi applies to a cluster by itself, embedded
// in the program. Each sub-folder is one named set; pkg/deploy applies them,
// except rbac, which goes first because the other components need it.
//
// Users never edit these files: an upgrade would overwrite them. An object with
// the same kind, namespace and name in a set of their own replaces the one here.
package manifests

import (
	"embed"
	"io/fs"
	"net/netip"
	"strings"
)

//go:embed crds dns metrics-server rbac storage
var files embed.FS

// RBACFolder is the set that the "rbac" component applies.
const RBACFolder = "rbac"

// FS returns the bundled sets. The documents may contain ${NAME} references,
// which are filled in when they are applied; [Vars] lists them.
func FS() fs.FS { return files }

// Names of the variables that the bundled manifests use.
const (
	// VarClusterDNS is the first address of the DNS service, such as 10.43.0.10;
	// VarClusterDNSList holds all of them as the elements of a YAML list, and
	// VarDNSFamilyPolicy is the family policy of a Service that has so many.
	VarClusterDNS      = "CLUSTER_DNS"
	VarClusterDNSList  = "CLUSTER_DNS_LIST"
	VarDNSFamilyPolicy = "CLUSTER_DNS_FAMILY_POLICY"
	// VarClusterDomain is the domain of the cluster, such as cluster.local.
	VarClusterDomain = "CLUSTER_DOMAIN"
)

// Vars returns the variables for a cluster with these DNS addresses, one or one
// of each family, and this domain.
func Vars(clusterDNS []netip.Addr, clusterDomain string) map[string]string {
	policy := "SingleStack"
	if len(clusterDNS) > 1 {
		policy = "PreferDualStack"
	}
	quoted := make([]string, len(clusterDNS))
	for i, a := range clusterDNS {
		quoted[i] = `"` + a.String() + `"`
	}
	return map[string]string{
		VarClusterDNS: clusterDNS[0].String(), VarClusterDNSList: strings.Join(quoted, ", "), VarDNSFamilyPolicy: policy,
		VarClusterDomain: clusterDomain,
	}
}
