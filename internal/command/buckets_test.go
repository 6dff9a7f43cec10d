package command

import (
	"os"
	"testing"
)

// A URL where only the disk will do is an error of its flag, and makes no folder that is
// called https:.
func TestURLsThatCannotBeUsed(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, args := range [][]string{
		{"train", "--features", "f", "--out", "https://host/d.safetensors"},
		{"train", "--features", "f", "--out", "d", "--report", "ftp://host/r.html"},
		{"extract", "--model", "pixels", "--images", "i", "--out", "https://host/set"},
		{"extract", "--model", "https://host/model", "--images", "i", "--out", "set"},
		{"detect", "--detector", "s3://bucket/d.safetensors", "i"},
		{"detect", "--detector", "d", "--out", "https://host/v", "i"},
		{"merge", "--out", "hdfs://host/set", "f"},
		{"export", "--detector", "d", "--out", "https://host/d.onnx"},
		{"evaluate", "--train", "f", "--id", "f", "--near", "a=f", "--out", "az://host/report"},
		{"train", "--features", "f", "--out", "d", "--add", "cat=https://host/cats"},
		{"serve", "--detector", "cats=https://host/d"},
		{"sign", "--key", "k", "https://host/d"},
	} {
		refused(t, "://", args...)
	}
	// What is read may be at a URL, and so may what is told of; other errors come first here.
	for _, args := range [][]string{
		{"train", "--features", "https://127.0.0.1:1/f?a=b", "--out", "d", "--epochs", "-1"},
		{"serve", "--detector", "d", "--webhook", "https://host/hook", "--store", "postgres://host/db", "--", "-1"},
		{"extract", "--model", "pixels", "--images", "https://host/{0..9}.tar", "--out", "set", "--workers", "-1"},
		{"extract", "--model", "pixels", "--images", "i", "--class", "https://host", "--out", "set", "--workers", "-1"},
	} {
		refused(t, "-1", args...)
	}
	if left, err := os.ReadDir("."); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}
