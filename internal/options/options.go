// Package options has the error with which the packages of this module report
// a bad or missing option. It names the Go field, so that it is of use to a
// program that imports the packages; the commands turn the name into a flag.
package options

import (
	"errors"
	"fmt"
	"strings"
)

// Error says what is wrong with the value of one field of an options struct.
type Error struct {
	// Option is the name of the Go field, such as "MaxPixels". A field of a
	// struct within the options is named with a dot, as in "Head.Layers",
	// only where the last part alone would be ambiguous.
	Option string
	// Err says what is wrong.
	Err error
}

// Error returns the name of the field and what is wrong, as in "MaxPixels: 0 is
// not positive".
func (e *Error) Error() string { return e.Option + ": " + e.Err.Error() }

// Unwrap returns the error without the name of the field.
func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an *Error about the field option. Format and args are those of
// [fmt.Errorf], %w included.
func Errorf(option, format string, args ...any) error {
	return &Error{Option: option, Err: fmt.Errorf(format, args...)}
}

// Name returns the name of the field that err is about, or "" if err is about
// none.
func Name(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Option
	}
	return ""
}

// Text is what err says as a part of a warning: the field that it is about stands between
// ‹ and ›, as for [Rename].
func Text(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*Error](err); ok {
		text = strings.Replace(text, e.Error(), "‹"+e.Option+"›: "+e.Err.Error(), 1)
	}
	return text
}

// Rename replaces the options that a warning names. In a warning a field stands between
// ‹ and ›, perhaps with a value: "let each image calibrate (‹Calibration cross:10›)". To
// gets the field, without the options that it is in, and the value, "" for none.
func Rename(warning string, to func(field, value string) string) string {
	var text strings.Builder
	for {
		before, rest, found := strings.Cut(warning, "‹")
		text.WriteString(before)
		name, after, closed := strings.Cut(rest, "›")
		if !found || !closed {
			text.WriteString(rest)
			return text.String()
		}
		field, value, _ := strings.Cut(name, " ")
		text.WriteString(to(field[strings.LastIndexByte(field, '.')+1:], value))
		warning = after
	}
}
