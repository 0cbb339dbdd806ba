package configcmd

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/kombi-k8s/kombi/pkg/config"
)

// writeYAML prints a configuration file. Keys without a value are left out, since the file would be refused with
// them, and so are secrets: a mask is no value.
func writeYAML(w io.Writer, settings []config.Setting, origin bool) error {
	root := &yaml.Node{Kind: yaml.MappingNode}
	for _, s := range settings {
		key, val := &yaml.Node{Kind: yaml.ScalarNode, Value: s.Key}, &yaml.Node{}
		if err := val.Encode(s.Value); err != nil {
			return err
		}
		empty := s.Value == "" || val.Kind == yaml.SequenceNode && len(val.Content) == 0
		if empty {
			continue
		}
		if s.Key == "config" || s.Value == config.Mask {
			// Not settings of a file; shown as comments so that the output stays usable as one.
			comment := fmt.Sprintf("%s: %v", s.Key, s.Value)
			if origin {
				comment += "  (" + originText(s.Origins) + ")"
			}
			root.HeadComment = strings.TrimPrefix(root.HeadComment+"\n"+comment, "\n")
			continue
		}
		if origin {
			annotate(val, s.Origins)
		}
		root.Content = append(root.Content, key, val)
	}
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return err
	}
	return enc.Close()
}

// annotate puts the origin behind the value, or behind each element of a list.
func annotate(val *yaml.Node, origins []config.Origin) {
	if val.Kind != yaml.SequenceNode {
		val.LineComment = originText(origins)
		return
	}
	for i, item := range val.Content {
		item.LineComment = origins[min(i, len(origins)-1)].String()
	}
}

// originText names each different origin once.
func originText(origins []config.Origin) string {
	var out []string
	for i, o := range origins {
		if i == 0 || o != origins[i-1] {
			out = append(out, o.String())
		}
	}
	return strings.Join(out, ", ")
}

// writeJSON prints an object of all keys; with origins each value is an object of value and origin.
func writeJSON(w io.Writer, settings []config.Setting, origin bool) error {
	out := make(map[string]any, len(settings))
	for _, s := range settings {
		out[s.Key] = s.Value
		if origin {
			out[s.Key] = map[string]any{"value": s.Value, "origin": originText(s.Origins)}
		}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}
