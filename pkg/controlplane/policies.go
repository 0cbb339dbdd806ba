package controlplane

// AnonymousHealthOnly is the API server's authentication configuration: nobody
// may ask anything without a name, but health and version.
const AnonymousHealthOnly = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
  - path: /livez
  - path: /readyz
  - path: /healthz
  - path: /version
`

// DefaultAuditPolicy records who did what, without the contents of secrets and
// without the steady reading of the system's own parts.
const DefaultAuditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
  userGroups: [system:nodes, system:serviceaccounts:kube-system]
- level: None
  nonResourceURLs: [/healthz*, /livez*, /readyz*, /version]
- level: None
  resources:
  - group: coordination.k8s.io
    resources: [leases]
- level: Metadata
  resources:
  - resources: [secrets, configmaps, serviceaccounts/token]
  - group: authentication.k8s.io
    resources: [tokenreviews]
- level: Metadata
  verbs: [get, list, watch]
- level: Request
`
