package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/hub"
)

// listing is the command models.
type listing struct {
	*command
	images, library string
}

var _ = declare("models", 5, "[list | get REPO[@REVISION][:FILE]] [flags]", "List models, or fetch one from the Hugging Face hub",
	`Lists the models that are installed, where models are looked for, and what fits which use.

models get fetches one graph of a published export, its weights and configuration into the hub's cache, which other tools share, checks their sizes and hashes, and says what extract --check says of the model. A download that was cut off continues. HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_CACHE mean what they mean to the hub's own tools. Nothing else fetches models. Then extract --model REPO uses it.`, addModels)

func addModels(c *command) {
	l := &listing{command: c}
	c.StringVar(&l.images, "images", "", "check the model on images in the folder `DIR`")
	c.means("images", "Images")
	c.StringVar(&l.library, "onnxruntime", "", "onnxruntime library `FILE` for the check (default: as for extract)")
	c.addJSON("print one JSON object")
	c.addQuiet("show no progress")
	c.takes(0, anyNumber, "")
	c.run = func(ctx context.Context, s Streams) error {
		h, err := hub.FromEnvironment()
		switch {
		case err != nil:
			return err
		case c.Arg(0) != "get" && (l.images != "" || l.library != ""):
			return Usagef("--images and --onnxruntime go with models get")
		case c.NArg() == 0, c.NArg() == 1 && c.Arg(0) == "list":
			return l.list(s, h)
		case c.Arg(0) != "get":
			return Usagef("unexpected argument %q; models get %s fetches a model", c.Arg(0), c.Arg(0))
		case c.NArg() != 2:
			return Usagef("name one model, such as models get onnx-community/dinov2-small")
		}
		name, err := hub.ParseName(c.Arg(1))
		if err != nil {
			return &UsageError{err}
		}
		return l.get(ctx, s, h, name)
	}
}

// uses says which published models fit which use; models/README.md has the table.
const uses = `what fits which use (models/README.md has a table of published exports):
  new classes that resemble yours   DINOv2 or DINOv3: mlrbfn models get onnx-community/dinov2-small
  images of any other kind          CLIP or SigLIP 2, whose features follow what a picture shows
  few cores, many images            efficientnet-lite0, which comes with the program
mlrbfn evaluate compares them on your own images.
`

// list lists what is installed.
func (l *listing) list(s Streams, h *hub.Hub) error {
	type model struct {
		Name   string `json:"name"`
		Folder string `json:"folder"`
	}
	found := struct {
		Models  []model  `json:"models"`
		Folders []string `json:"folders"`
	}{[]model{}, nil}
	folders, models := extractor.InstalledModels()
	found.Folders = append(folders, h.Cache)
	for _, folder := range models {
		found.Models = append(found.Models, model{filepath.Base(folder), folder})
	}
	repos, places := h.Cached()
	for i, repo := range repos {
		found.Models = append(found.Models, model{repo, places[i]})
	}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "installed:")
	for _, m := range found.Models {
		fmt.Fprintf(w, "  %s\t%s\n", Printable(m.Name), Printable(m.Folder))
	}
	if len(found.Models) == 0 {
		fmt.Fprintln(w, "  none"+modelAdvice)
	}
	w.Flush()
	fmt.Fprintln(&text, "\nmodels are looked for in:")
	for _, folder := range found.Folders {
		fmt.Fprintf(&text, "  %s\n", Printable(folder))
	}
	text.WriteString("MLRBFN_MODELS lists more folders.\n\n" + uses)
	return l.print(s, found, text.String())
}

// get fetches a model and checks it.
func (l *listing) get(ctx context.Context, s Streams, h *hub.Hub, name hub.Name) error {
	repo, err := h.List(ctx, name)
	if err != nil {
		return err
	}
	w := ForPeople(s.Out)
	if l.asJSON {
		w = io.Discard
	}
	license := "the repository names no licence: look at its page before you use it"
	if repo.License != "" {
		license = "licence: " + repo.License
	}
	fmt.Fprintf(w, "%s, commit %.12s; %s\n", repo.Repo, repo.Commit, license)
	progress := l.progress(s, "kB")
	h.Progress = func(file string, done, total int64) { progress.Update(int(done/1000), int(total/1000), file) }
	graph, files, err := h.Fetch(ctx, repo)
	progress.Close()
	if err != nil {
		return err
	}
	var size int64
	for _, f := range files {
		size += f.Size
	}
	fmt.Fprintf(w, "%s of %.1f MB, as the hub lists them\n\n", count(len(files), "file"), float64(size)/1e6)
	check := []string{"--check", "--model", graph}
	for flag, value := range map[string]string{"--images": l.images, "--onnxruntime": l.library} {
		if value != "" {
			check = append(check, flag, value)
		}
	}
	var said bytes.Buffer
	checking := Streams{In: s.In, Out: s.Out, Err: s.Err}
	if l.asJSON {
		check, checking.Out = append(check, "--json"), &said
	}
	_, err = execute(ctx, commands["extract"].make().cmd, check, checking)
	if err != nil {
		err = fmt.Errorf("the model was fetched into %s: %w", graph, err)
	}
	if !l.asJSON {
		fmt.Fprintf(w, "\nnext: %s\n", CommandLine("mlrbfn", []string{"extract", "--model", l.Arg(1), "--images", "PHOTOS", "--out", "FEATURES"}))
		return err
	}
	return errors.Join(l.print(s, struct {
		*hub.Repo
		Model string          `json:"model"`
		Files []hub.File      `json:"files"`
		Check json.RawMessage `json:"check,omitempty"`
	}{repo, graph, files, said.Bytes()}, ""), err)
}

// useFetched lets flags of models take the name of one that was fetched from the hub.
func (c *command) useFetched() error {
	for _, flag := range []string{"model", "against"} {
		f := c.Lookup(flag)
		if f == nil || f.Value.Type() != "string" || !strings.Contains(f.Value.String(), "/") || exists(f.Value.String()) {
			continue
		}
		name, err := hub.ParseName(f.Value.String())
		if err != nil {
			continue
		}
		h, err := hub.FromEnvironment()
		if err != nil {
			return err
		}
		if folder, err := h.Find(name); err == nil {
			if err := f.Value.Set(folder); err != nil {
				return err
			}
		}
	}
	return nil
}
