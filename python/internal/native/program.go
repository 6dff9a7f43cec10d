package native

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/command"
)

// describe says which options a command has.
func describe(_ *call, arguments json.RawMessage, _ []Buffer) (any, error) {
	var a struct {
		Command string `json:"command"`
	}
	if err := decode(arguments, &a); err != nil {
		return nil, err
	}
	return command.Options(a.Command)
}

// run runs a command of the program, and returns what it prints. Its notes are warnings.
func run(c *call, arguments json.RawMessage, _ []Buffer) (any, error) {
	var a struct {
		Command  string           `json:"command"`
		Settings command.Settings `json:"settings"`
		Paths    []path           `json:"paths"` // that follow the flags
	}
	if err := decode(arguments, &a); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	said := &saying{call: c}
	err := command.RunCommand(c.ctx, a.Command, a.Settings, texts(a.Paths), command.Streams{In: strings.NewReader(""), Out: &out, Err: said})
	for line := range strings.Lines(said.String()) {
		if _, text, ok := strings.Cut(line, ": warning: "); ok {
			c.warn(command.WarningInWords(a.Command, strings.TrimSpace(text)))
		} else if _, text, ok := strings.Cut(line, ": note: "); ok {
			c.warn(command.WarningInWords(a.Command, strings.TrimSpace(text)))
		}
	}
	if errors.Is(err, command.ErrPartial) || errors.Is(err, command.ErrNotSetAside) {
		c.warn(command.InWords(a.Command, err))
		err = nil
	}
	return out.String(), err
}

// saying is the standard error of a command.
type saying struct {
	bytes.Buffer
	call *call
}

// Follow makes progress that of the call.
func (s *saying) Follow(what string, done, total int) { s.call.progress(what, done, total, "") }
