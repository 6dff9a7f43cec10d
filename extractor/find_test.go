//go:build unix

package extractor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/options"
)

func TestFindModel(t *testing.T) {
	dir := t.TempDir()
	in := func(elem ...string) string { return filepath.Join(append([]string{dir}, elem...)...) }
	write(t, in("recorded", "model.onnx"), string(pixels(-1)))
	hash, err := hashGraph(t.Context(), in("recorded", "model.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	for _, copied := range []string{"beside/name/model.onnx", "models/a/onnx/other.onnx", "one/model.onnx"} {
		write(t, in(copied), string(pixels(-1)))
	}
	for _, other := range []string{"beside/aaa/model.onnx", "models/b/model.onnx", "judged/model.onnx", "wrong/model.onnx"} {
		write(t, in(other), string(pixels(1)))
	}
	if err := errors.Join(syscall.Mkfifo(in("pipe.onnx"), 0o666), os.Symlink("/dev/zero", in("zero.onnx")), syscall.Mkfifo(in("models", "c.onnx"), 0o666)); err != nil {
		t.Fatal(err)
	}
	t.Chdir(in("judged"))
	for _, test := range []struct {
		name, models string
		ref          ModelReference
		want         string // "" for none
	}{
		{"recorded path", "", ModelReference{hash, in("recorded"), ""}, "recorded/model.onnx"},
		{"recorded file", "", ModelReference{hash, in("recorded", "model.onnx"), in("models", "b")}, "recorded/model.onnx"},
		{"beside the file that names it", "", ModelReference{hash, in("was", "name"), in("beside")}, "beside/name/model.onnx"},
		{"beside it, by another name", "", ModelReference{hash, "", in("beside")}, "beside/name/model.onnx"},
		{"the user's folders", in("wrong") + ":" + in("models"), ModelReference{hash, in("gone"), in("wrong")}, "models/a/onnx/other.onnx"},
		{"the user's folder of one model", in("one"), ModelReference{hash, in("gone", "model.onnx"), ""}, "one/model.onnx"},
		{"another model at the recorded path", "", ModelReference{hash, in("wrong"), ""}, ""},
		{"a path of the working directory", "", ModelReference{"", "../recorded", ""}, ""},
		{"a relative path out of the folder", "", ModelReference{hash, "../recorded", in("beside", "aaa")}, ""},
		{"no hash", in("models"), ModelReference{"", in("recorded"), in("recorded")}, ""},
		{"a pipe", "", ModelReference{hash, in("pipe.onnx"), ""}, ""},
		{"a device", "", ModelReference{hash, in("zero.onnx"), ""}, ""},
		{"a device's folder", "", ModelReference{hash, "/dev", ""}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv(modelsEnv, test.models)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			got, err := test.ref.Find(ctx)
			switch {
			case test.want != "" && (err != nil || got != in(test.want)):
				t.Errorf("%s, %v; want %s", got, err, test.want)
			case test.want == "" && options.Name(err) != "Model":
				t.Errorf("%s, %v", got, err)
			case test.want == "" && test.ref.SHA256 != "" && !errors.Is(err, fs.ErrNotExist):
				t.Error(err)
			}
		})
	}
}
