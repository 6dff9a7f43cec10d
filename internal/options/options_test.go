package options_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/options"
)

func TestErrorf(t *testing.T) {
	err := options.Errorf("MaxPixels", "%d is not positive", 0)
	if want := "MaxPixels: 0 is not positive"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
	wrapped := fmt.Errorf("reading: %w", options.Errorf("Model", "opening it: %w", fs.ErrNotExist))
	if want := "reading: Model: opening it: file does not exist"; wrapped.Error() != want {
		t.Errorf("%q, want %q", wrapped, want)
	}
	if !errors.Is(wrapped, fs.ErrNotExist) {
		t.Error("the cause of an option's error is lost")
	}
	if e, ok := errors.AsType[*options.Error](wrapped); !ok || e.Option != "Model" || e.Err.Error() != "opening it: file does not exist" {
		t.Errorf("%+v", e)
	}
}

func TestName(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("x"), ""},
		{options.Errorf("Memory", "x"), "Memory"},
		{fmt.Errorf("y: %w", options.Errorf("Memory", "x")), "Memory"},
		{errors.Join(errors.New("y"), options.Errorf("Memory", "x")), "Memory"},
	} {
		if got := options.Name(tt.err); got != tt.want {
			t.Errorf("Name(%v) = %q, want %q", tt.err, got, tt.want)
		}
	}
}

// ExampleErrorf shows how a caller tells which option was bad.
func ExampleErrorf() {
	open := func(maxPixels int) error {
		if maxPixels < 1 {
			return options.Errorf("MaxPixels", "%d is not positive", maxPixels)
		}
		return nil
	}
	err := open(0)
	fmt.Println(err)
	fmt.Println(options.Name(err))
	// Output:
	// MaxPixels: 0 is not positive
	// MaxPixels
}
