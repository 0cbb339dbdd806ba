package main

import (
	_ "embed" // the list
	"fmt"
	"regexp"

	"sigs.k8s.io/yaml"
)

//go:embed skips.yaml
var skipsYAML []byte

// skipList is skips.yaml.
type skipList struct {
	// Skips are left out of every run.
	Skips []skip `json:"skips"`
	// Images are those of the suite that the project does not build.
	Images []lackingImage `json:"images"`
}

// skip says why specs whose names match a regular expression do not run.
type skip struct {
	Pattern string `json:"pattern"`
	Reason  string `json:"reason"`

	pattern *regexp.Regexp
}

// lackingImage says which specs need an image that is not there.
type lackingImage struct {
	Image  string `json:"image"`
	Reason string `json:"reason"`
	Specs  string `json:"specs"`
}

func readSkips() (*skipList, error) {
	list := new(skipList)
	if err := yaml.UnmarshalStrict(skipsYAML, list); err != nil {
		return nil, fmt.Errorf("skips.yaml: %w", err)
	}
	for i := range list.Skips {
		s := &list.Skips[i]
		if s.Pattern == "" || s.Reason == "" {
			return nil, fmt.Errorf("skips.yaml: entry %d lacks a pattern or a reason", i+1)
		}
		var err error
		if s.pattern, err = regexp.Compile(s.Pattern); err != nil {
			return nil, fmt.Errorf("skips.yaml: %w", err)
		}
	}
	return list, nil
}

// match returns the entry that leaves a spec out, or nil.
func (l *skipList) match(name string) *skip {
	for i := range l.Skips {
		if l.Skips[i].pattern.MatchString(name) {
			return &l.Skips[i]
		}
	}
	return nil
}
