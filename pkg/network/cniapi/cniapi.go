// Package cniapi is how the CNI plugin and the node talk: one JSON request and one
// JSON response over a unix socket. It imports little, because the plugin starts for each pod.
package cniapi

import "encoding/json"

// Request is one call of the plugin.
type Request struct {
	// Command is ADD, DEL, CHECK, GC or STATUS.
	Command     string `json:"command"`
	ContainerID string `json:"containerID,omitempty"`
	Netns       string `json:"netns,omitempty"`
	IfName      string `json:"ifName,omitempty"`
	// Args are the "K=V;K=V" arguments of the runtime.
	Args string `json:"args,omitempty"`
	// Config is the network configuration as the plugin received it.
	Config json.RawMessage `json:"config,omitempty"`
}

// Response answers a request: with an error, or with a result that may be empty.
type Response struct {
	// Result is printed by the plugin as it is.
	Result json.RawMessage `json:"result,omitempty"`
	Error  *Error          `json:"error,omitempty"`
}

// Error codes of the CNI specification.
const (
	CodeIncompatible     = 1
	CodeUnsupportedField = 2
	CodeUnknownContainer = 3
	CodeInvalidEnv       = 4
	CodeIO               = 5
	CodeDecode           = 6
	CodeInvalidConfig    = 7
	CodeTryAgain         = 11
	CodeUnavailable      = 50
	CodeInternal         = 999
)

// Error is an error as the CNI specification defines it.
type Error struct {
	CNIVersion string `json:"cniVersion"`
	Code       uint   `json:"code"`
	Msg        string `json:"msg"`
	Details    string `json:"details,omitempty"`
}

func (e *Error) Error() string {
	if e.Details != "" {
		return e.Msg + ": " + e.Details
	}
	return e.Msg
}
