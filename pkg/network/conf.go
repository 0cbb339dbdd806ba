package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// writeConf writes the CNI configuration. kubelet takes its presence for a working network.
func writeConf(o Options) error {
	raw, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.1.0",
		"name":       "kombi",
		"plugins": []any{map[string]any{
			"type":         "kombi-cni",
			"socket":       o.SocketPath,
			"capabilities": map[string]bool{"portMappings": true},
		}},
	}, "", "  ")
	if err != nil {
		return err
	}
	raw = append(raw, '\n')
	path := o.confFile()
	if old, err := os.ReadFile(path); err == nil && string(old) == string(raw) {
		return nil
	}
	if err := os.MkdirAll(o.CNIConfDir, 0o755); err != nil {
		return fmt.Errorf("cannot write the CNI configuration: %w", err)
	}
	// The runtime watches the directory and reads files that end in .conflist.
	tmp := path + ".tmp"
	err = os.WriteFile(tmp, raw, 0o600)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot write the CNI configuration: %w", err), os.RemoveAll(tmp))
	}
	return nil
}
