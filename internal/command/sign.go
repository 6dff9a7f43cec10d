package command

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/signature"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// publicKeyEnv is the environment variable with the key that detectors must be
// signed by.
const publicKeyEnv = "MLRBFN_PUBLIC_KEY"

// addPublicKeyFlag adds the flag, and returns what loads a detector as it says.
func addPublicKeyFlag(f *pflag.FlagSet) func(file string) (*pipeline.Detector, error) {
	key := f.String("public-key", "", "refuse a detector that is not signed by `KEY|FILE`, a public key of minisign (default: $"+publicKeyEnv+")")
	annotate(f.Lookup("public-key"), ofFields, "PublicKey")
	return func(file string) (*pipeline.Detector, error) {
		if f.Changed("public-key") && *key == "" {
			return nil, Usagef("--public-key is empty")
		}
		if by := cmp.Or(*key, os.Getenv(publicKeyEnv)); by != "" {
			return pipeline.LoadSignedDetector(file, by)
		}
		return pipeline.LoadDetector(file)
	}
}

var _ = declare("sign", 120, "--key FILE DETECTOR", "Sign a detector for those whom you give it to",
	`Signs a detector: writes DETECTOR.minisig beside it, as minisign -S does. detect --public-key refuses a detector that is not signed by that key. The signature covers the detector, its threshold, and through its hash the model.

A key is made with minisign -G (https://jedisct1.github.io/minisign). A password that protects it is asked for, or read from standard input.`, addSign)

func addSign(c *command) {
	key := c.String("key", "", "secret key `FILE`")
	c.required = []string{"key"}
	c.takes(1, 1, "name one detector")
	c.run = func(ctx context.Context, s Streams) error {
		file := c.Arg(0)
		d, err := pipeline.LoadDetector(file)
		if err != nil {
			return err
		}
		if d.Source.Model != extractor.PixelsName && (d.Source.SHA256 == "" || d.Source.Fingerprint == "") {
			return fmt.Errorf("detector %s does not name its model by a hash, so that a signature would not cover the model", file)
		}
		if info, err := os.Stat(file); err == nil && info.IsDir() {
			file = filepath.Join(file, detector.BundleFile)
		}
		data, err := disk.ReadFile(file, disk.Tensors)
		if err != nil {
			return err
		}
		secret, err := disk.ReadFile(*key, 1<<12)
		if err != nil {
			return fmt.Errorf("--key: %w", err)
		}
		comment := fmt.Sprintf("timestamp:%d\tfile:%s\thashed", time.Now().Unix(), Printable(filepath.Base(file)))
		text, public, err := signature.Sign(bytes.NewReader(data), secret, func() (string, error) { return password(s) }, comment)
		if err != nil {
			return fmt.Errorf("--key %s: %w", *key, err)
		}
		err = disk.Write(file+signature.Suffix, disk.Bytes(text))
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(ForPeople(s.Out), "%s%s: check it with detect --public-key %s\n", file, signature.Suffix, public)
		return err
	}
}

// password reads a line without showing it.
func password(s Streams) (string, error) {
	if f, ok := s.In.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		fmt.Fprint(s.Err, "password: ")
		text, err := term.ReadPassword(int(f.Fd()))
		fmt.Fprintln(s.Err)
		return string(text), err
	}
	line, err := bufio.NewReader(s.In).ReadString('\n')
	if err == io.EOF {
		err = nil
	}
	return strings.TrimRight(line, "\r\n"), err
}
