package config

import (
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
)

// value is a field of Config seen through its text form.
type value interface {
	// set replaces a single value, or appends one element to a list.
	set(raw string) error
	// reset empties the value.
	reset()
	// get returns what config show prints: a string, an int, a bool or a []string.
	get() any
}

// scalar binds a field to a parser of its text form.
func scalar[T any](field *T, parse func(string) (T, error)) value {
	return &scalarValue[T]{field, parse}
}

type scalarValue[T any] struct {
	field *T
	parse func(string) (T, error)
}

func (v *scalarValue[T]) set(raw string) error {
	parsed, err := v.parse(raw)
	if err == nil {
		*v.field = parsed
	}
	return err
}

func (v *scalarValue[T]) reset() {
	var zero T
	*v.field = zero
}

func (v *scalarValue[T]) get() any {
	switch t := any(*v.field).(type) {
	case int, bool, string:
		return t
	case fs.FileMode:
		return fmt.Sprintf("%04o", uint32(t))
	case netip.Addr:
		if !t.IsValid() {
			return ""
		}
	}
	return fmt.Sprint(*v.field)
}

// String writes the range as it is written in files: first-last.
func (r PortRange) String() string { return strconv.Itoa(r.First) + "-" + strconv.Itoa(r.Last) }

// list binds a field that holds several values to a parser of one of them.
func list[T any](field *[]T, parse func(string) (T, error)) value {
	return &listValue[T]{field, parse}
}

type listValue[T any] struct {
	field *[]T
	parse func(string) (T, error)
}

func (v *listValue[T]) set(raw string) error {
	parsed, err := v.parse(strings.TrimSpace(raw))
	if err == nil {
		*v.field = append(*v.field, parsed)
	}
	return err
}

func (v *listValue[T]) reset() { *v.field = nil }

func (v *listValue[T]) get() any {
	texts := make([]string, len(*v.field))
	for i, element := range *v.field {
		texts[i] = fmt.Sprint(element)
	}
	return texts
}
