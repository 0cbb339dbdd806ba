package deploy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
	"strings"

	kombiv1 "github.com/kombi-k8s/kombi/pkg/apis/kombi/v1"
)

// BundledPrefix begins the AddOn names of the bundled sets, so that a user's set
// may be called "dns" or "storage" too.
const BundledPrefix = "kombi-"

// set is a named set of manifests as it is on disk or in the program now.
type set struct {
	name   string // of its AddOn
	source kombiv1.AddOnSource
	path   string // what the AddOn shows

	documents []document
	skipped   []document // documents of files with a .skip beside them
	problems  []problem

	// frozen is the .skip file that says to leave the whole set alone.
	frozen string
	// incomplete is set when something could not be read, so that an absent
	// document does not mean that its object is to go.
	incomplete bool
	// disabled is a bundled set whose objects are to be deleted.
	disabled bool
	// ghost is a set of which only the record is known, because the folder that
	// it is in cannot be read: it keeps its objects and is not worked on.
	ghost bool

	digest hash.Hash
}

func newSet(name string, source kombiv1.AddOnSource, path string) *set {
	return &set{name: name, source: source, path: path, digest: sha256.New()}
}

func (s *set) bundled() bool { return s.source == kombiv1.SourceBundled }

// note adds to the checksum. Lengths go in too, so that no two lists of parts
// have the same one.
func (s *set) note(parts ...string) {
	for _, part := range parts {
		fmt.Fprintf(s.digest, "%d:%s", len(part), part)
	}
}

func (s *set) checksum() string { return hex.EncodeToString(s.digest.Sum(nil)) }

// add parses the contents of one file into the set.
func (s *set) add(file string, data []byte, skip bool) {
	if skip {
		s.note("skip", file, string(data))
		documents, problems := parse(file, data)
		s.skipped = append(s.skipped, documents...)
		// What a file that nobody applies contains is nobody's problem, but its
		// objects stay, so nothing may be concluded from their absence.
		if len(problems) > 0 {
			s.incomplete = true
		}
		return
	}
	s.note("file", file, string(data))
	documents, problems := parse(file, data)
	for _, d := range documents {
		if first := s.find(d.key()); first != nil {
			s.problems = append(s.problems, problem{conflict, fmt.Sprintf("%s: %s is in this set already (%s); one of the two has to go", d.where(), d.key(), first.where())})
			continue
		}
		s.documents = append(s.documents, d)
	}
	if len(problems) > 0 {
		s.incomplete = true
	}
	s.problems = append(s.problems, problems...)
}

// unreadable records a file of the set that could not be read.
func (s *set) unreadable(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.note("unreadable", text)
	s.problems = append(s.problems, problem{invalid, text})
	s.incomplete = true
}

func (s *set) find(key objectKey) *document {
	for i := range s.documents {
		other := s.documents[i].key()
		if slices.Contains(other.variants(), key) || slices.Contains(key.variants(), other) {
			return &s.documents[i]
		}
	}
	return nil
}

// Short names of the reasons that are used most.
const (
	invalid  = kombiv1.ReasonInvalidManifest
	conflict = kombiv1.ReasonConflict
)

// setName turns the base name of a file or folder into the name of an AddOn:
// what is not allowed in an object's name becomes a hyphen.
func setName(base string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, base)
	name = strings.Trim(name, "-.")
	// Adjoining dots and hyphens are no valid name.
	for _, pair := range []string{"..", ".-", "-."} {
		for strings.Contains(name, pair) {
			name = strings.ReplaceAll(name, pair, "-")
		}
	}
	// The name is also a label's value, which has at most 63 characters.
	if name != base && name != strings.ToLower(base) || len(name) > 63 {
		sum := sha256.Sum256([]byte(base))
		short := hex.EncodeToString(sum[:4])
		name = strings.Trim(name[:min(len(name), 63-1-len(short))]+"-"+short, "-.")
	}
	return name
}
