package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// OpenOOD's folders of images, below its data root.
const (
	classic    = "images_classic"
	largescale = "images_largescale"
)

// set is images on disk.
type set struct {
	name string
	root string // folder of images, below the data root
	list string // OpenOOD list, below the data root; "" takes all of root
	part int    // part of a folder: 0 all, trainPart all but every fourth image of a class, testPart those

	classes []string // folders to take images of, numbered in this order; nil takes all
}

const (
	trainPart = 1 + iota
	testPart
)

// grid is the paper's experiment on one in-distribution data set.
type grid struct {
	name  string // its name in the paper
	title string // its name in our tables

	train, test set
	val         *set // nil: a tenth of the training images
	near, far   []set

	// preset names the settings of the paper's head: --paper or another preset.
	preset string

	// standIn says what differs from the paper's data; "" if nothing does.
	standIn string
	models  []string // used unless others are given; in models/ of the checkout or of the shared folder
}

// openood returns a grid with the lists of OpenOOD v1.5.
func openood(name, title, id, lists, root, preset string, near, far []set) grid {
	at := func(s set) set {
		s.list = fmt.Sprintf("benchmark_imglist/%s/%s.txt", lists, s.list)
		s.root = cmp.Or(s.root, root)
		return s
	}
	all := func(sets []set) (listed []set) {
		for _, s := range sets {
			s.list = "test_" + s.name
			listed = append(listed, at(s))
		}
		return listed
	}
	val := at(set{name: "val", list: "val_" + id})
	return grid{
		name: name, title: title, preset: preset, val: &val,
		train: at(set{name: "train", list: "train_" + id}), test: at(set{name: "test", list: "test_" + id}),
		near: all(near), far: all(far),
	}
}

// grids returns the paper's grids by their names on the command line, and the grids
// of their stand-ins.
func grids() (paper, standIns map[string]grid) {
	farClassic := []set{{name: "mnist"}, {name: "svhn"}, {name: "texture"}, {name: "places365"}}
	nearImageNet := []set{{name: "ssb_hard"}, {name: "ninco"}}
	farImageNet := []set{{name: "inaturalist"}, {name: "textures", root: classic}, {name: "openimage_o"}}
	paper = map[string]grid{
		"cifar10":     openood("CIFAR10", "CIFAR-10", "cifar10", "cifar10", classic, "", []set{{name: "cifar100"}, {name: "tin"}}, farClassic),
		"cifar100":    openood("CIFAR100", "CIFAR-100", "cifar100", "cifar100", classic, "", []set{{name: "cifar10"}, {name: "tin"}}, farClassic),
		"imagenet200": openood("ImageNet200", "ImageNet-200", "imagenet200", "imagenet200", largescale, "", nearImageNet, farImageNet),
		"imagenet1k":  openood("ImageNet1K", "ImageNet-1K", "imagenet", "imagenet", largescale, "imagenet1k", nearImageNet, farImageNet),
	}

	tree := func(name, root string) set { return set{name: name, root: "images/" + root} }
	photographs := []set{tree("texture", "texture"), tree("scenes", "scenes"), tree("streetchars", "streetchars")}
	const far = "scenes stand in for Places365 and street characters for SVHN, 10 of DTD's 47 classes for all, and MNIST is left out; " +
		"the far-OOD images are larger photographs than CIFAR's 32 × 32 pixels, so far-OOD metrics partly measure resolution"
	general := []string{"efficientnet-lite0", "vit-tiny-p16", "mobilenetv2"}
	imagenette := grid{
		train: tree("train", "imagenette/train"), test: tree("test", "imagenette/val"),
		near: []set{tree("imagewoof", "imagewoof")}, far: photographs, models: general,
	}
	imagenet200, imagenet1k := imagenette, imagenette
	const dogs = "Imagenette, 600 images of 10 classes, stands in for %s, dogs (Imagewoof) for SSB-hard and NINCO, " +
		"textures, scenes and street characters for iNaturalist, Textures and OpenImage-O"
	imagenet200.title, imagenet200.standIn = "ImageNet-200 (stand-in)", fmt.Sprintf(dogs, "ImageNet-200")
	imagenet1k.title, imagenet1k.standIn, imagenet1k.preset = "ImageNet-1K (stand-in)", fmt.Sprintf(dogs, "ImageNet-1K"), "imagenet1k"
	standIns = map[string]grid{
		"cifar10": {
			title: "CIFAR-10 (stand-in)",
			train: tree("train", "cifar10/train"), test: tree("test", "cifar10/test"),
			near:    []set{tree("cifar100", "cifar100"), tree("tin", "tin")},
			far:     photographs,
			models:  append([]string{"resnet20-cifar10", "resnet56-cifar10", "densenet100-cifar10"}, general...),
			standIn: "10,000 training and 2,000 test images stand in for CIFAR-10's, 2,000 and 1,000 for the near-OOD sets; " + far,
		},
		"cifar100": {
			title: "CIFAR-100 (stand-in)",
			train: tree("train", "cifar100-train"), test: tree("test", "cifar100/test"),
			near: []set{tree("cifar10", "cifar10/test"), tree("tin", "tin")}, far: photographs,
			models:  append([]string{"densenet100-cifar100"}, general...),
			standIn: "20,000 training and 2,000 test images stand in for CIFAR-100's; " + far,
		},
		"imagenet200": imagenet200,
		"imagenet1k":  imagenet1k,
	}
	return paper, standIns
}

// absent returns the missing file or folder of a set below the data root, "" if
// there is none. For a list it checks only the top folder of the first image.
func (s set) absent(data string) (string, error) {
	need := []string{filepath.Join(data, s.root)}
	if s.list != "" {
		list := filepath.Join(data, s.list)
		f, err := os.Open(list)
		if errors.Is(err, fs.ErrNotExist) {
			return list, nil
		}
		if err != nil {
			return "", err
		}
		defer f.Close()
		line := bufio.NewScanner(f)
		line.Scan()
		if err := line.Err(); err != nil {
			return "", fmt.Errorf("%s: %w", list, err)
		}
		top, _, _ := strings.Cut(line.Text(), "/")
		need = append(need, filepath.Join(data, s.root, top))
	}
	for _, dir := range need {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return dir, nil
		} else if err != nil {
			return "", err
		}
	}
	return "", nil
}

// superclasses returns twenty grids of few and similar classes by the names of
// CIFAR-100's superclasses: the first four of a superclass's five classes, by name,
// are known, and the fifth is near-OOD.
func superclasses(data string) (map[string]grid, error) {
	file := filepath.Join(data, "images", "cifar100-superclasses.csv")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	records, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	members := map[string][]string{}
	for _, r := range records[1:] {
		members[r[0]] = append(members[r[0]], r[1])
	}
	_, standIns := grids()
	all := map[string]grid{}
	for name, classes := range members {
		slices.Sort(classes)
		known, last := classes[:len(classes)-1], classes[len(classes)-1:]
		of := func(kind string, part int, classes []string) set {
			return set{name: name + "-" + kind, root: "images/cifar100-train", part: part, classes: classes}
		}
		all[name] = grid{
			title: strings.ReplaceAll(name, "_", " "), train: of("train", trainPart, known), test: of("test", testPart, known),
			near: []set{of("new", 0, last)}, far: standIns["cifar100"].far,
			models: []string{"efficientnet-lite0", "vit-tiny-p16"},
			standIn: fmt.Sprintf("four classes of a superclass of CIFAR-100 are known, three quarters of their 200 images each to train on and one to test; "+
				"the fifth (%s) is near-OOD", last[0]),
		}
	}
	return all, nil
}

// source returns the images and the list to extract. For a part of a folder or some
// of its classes it writes the list under out.
func (s set) source(data, out string) (opts pipeline.ExtractOptions, err error) {
	opts.Images = filepath.Join(data, s.root)
	if s.list != "" {
		opts.List = filepath.Join(data, s.list)
	}
	if s.part == 0 && s.classes == nil {
		return opts, nil
	}
	listing, err := images.List(context.Background(), images.ListOptions{Root: opts.Images})
	if err != nil {
		return opts, err
	}
	var lines strings.Builder
	seen := map[int]int{}
	for _, item := range listing.Items {
		label := item.Label
		if s.classes != nil {
			if label = slices.Index(s.classes, filepath.Dir(item.Path)); label < 0 {
				continue
			}
		}
		seen[label]++
		if s.part == 0 || (seen[label]%4 == 0) == (s.part == testPart) {
			fmt.Fprintf(&lines, "%s %d\n", item.Path, label)
		}
	}
	opts.List = filepath.Join(out, "lists", s.name+".txt")
	if err := os.MkdirAll(filepath.Dir(opts.List), 0o777); err != nil {
		return opts, err
	}
	return opts, os.WriteFile(opts.List, []byte(lines.String()), 0o666)
}
