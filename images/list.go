package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// ErrNoImages is wrapped by the error of [List] if there is no image.
var ErrNoImages = errors.New("no images")

// ListOptions says what to list.
type ListOptions struct {
	// Root is the folder that all paths are relative to, or an idx file of
	// images.
	Root string
	// ListFile, where not empty, names an OpenOOD list: one "path label" a
	// line. Only its images are listed.
	ListFile string
	// NamesFile, where not empty, names another list with the same integers,
	// whose folders name the classes: OpenOOD's list of ImageNet's test images
	// has one folder for all.
	NamesFile string
	// Except, where not empty, names a folder that is not looked into, by
	// whatever name or link it is met.
	Except string
}

// A Listing holds the images that [List] found.
type Listing struct {
	// Root is the folder as it was given; that of an idx file is where it lies.
	Root string
	// Grey tells that the images come from an idx file and have no colours.
	Grey bool
	// Items are sorted by the bytes of Path.
	Items []Item
	// Classes are the names of the labels: of a tree in the order of their
	// bytes, of a list in the order of its integers.
	Classes []string
	// Skipped counts the files that are an image neither by name nor by
	// content.
	Skipped int
	// Hidden counts the folders that were not looked into because they are
	// hidden (.git) or a system's (@eaDir, __MACOSX, lost+found).
	Hidden int
	// Empty are the folders that would be a class if there were an image in them.
	Empty []string
	// Errors tell of folders and files that could not be looked into.
	Errors []ListError
}

// A ListError is a path, relative to the root as in [Item], that could not be
// looked into, and why.
type ListError struct {
	Path string
	Err  error
}

func (e ListError) Error() string { return fmt.Sprintf("%s: %v", e.Path, e.Err) }

func (e ListError) Unwrap() error { return e.Err }

// lister is at work on a listing.
type lister struct {
	*Listing
	ctx    context.Context
	folder *folder           // that is listed; nil for an idx file
	seen   map[identity]bool // the folders that were looked into
}

// add lists an image.
func (l *lister) add(item Item) {
	item.folder = l.folder
	l.Items = append(l.Items, item)
}

// List finds the images of a folder.
//
// Of a tree DIR/class/…/image the first folder is the class; images that lie in
// DIR itself have no label. Every file is looked at: it is an image by its name
// or by its first bytes, and counted in Skipped otherwise, as are the files ._NAME
// that macOS leaves on other file systems. Links are followed,
// out of the folder too; see [Item.Locate] for who wants to change what lies in
// it. Each folder is looked into once: of several links to it, and of those that
// lead back to a folder that they lie in, all but the first are passed over. Hidden folders and those that systems make
// are not looked into, and counted in Hidden. Folders without images are listed
// in Empty, unless no folder has images (photographs with a folder of notes).
//
// With a list file the labels are its integers, −1 for none. A class is named
// after the deepest folder name that is in the path of all images of its label
// and of no image of another label; where there is none it is named by the
// integer. Listed files are taken for images unseen,
// so that one that is missing is an error of that image, unless all are.
//
// An idx file of images (MNIST's format), plain or gzipped, may take the place of
// the folder; a folder that holds one and no image files stands for it. Labels
// come from the idx file of labels beside it, where there is one with the usual
// name, and classes are called by those of their integers that occur. The whole
// file is read into memory, and an error where it or its labels are broken.
func List(ctx context.Context, opts ListOptions) (*Listing, error) {
	info, err := os.Stat(opts.Root)
	if err != nil {
		return nil, fmt.Errorf("images: %w; name the folder that they are in", err)
	}
	l := &lister{Listing: &Listing{Root: opts.Root}, ctx: ctx, seen: map[identity]bool{}}
	if info.IsDir() {
		l.folder = &folder{opts.Root, info}
		l.seen[identify(opts.Root, info)] = true
	}
	if except, err := os.Stat(opts.Except); opts.Except != "" && err == nil {
		l.seen[identify(opts.Except, except)] = true
	}
	switch {
	case !info.IsDir() && opts.ListFile != "":
		return nil, fmt.Errorf("images: %s is a file; a list needs the folder that its paths start from", opts.Root)
	case !info.IsDir() && !IsIDXImages(opts.Root):
		return nil, fmt.Errorf("images: %s is a file; name the folder that they are in, or an idx file of images", opts.Root)
	case !info.IsDir():
		l.Listing, err = listIDX(opts.Root)
	case opts.ListFile != "":
		err = l.readList(opts.ListFile, opts.NamesFile)
	default:
		if err = l.walkRoot(); errors.Is(err, ErrNoImages) {
			switch file, several := findIDX(opts.Root); {
			case several != nil:
				return nil, several
			case file != "":
				l.Listing, err = listIDX(file)
			}
		}
	}
	if err := cmp.Or(ctx.Err(), err); err != nil {
		return nil, err
	}
	return l.Listing, nil
}

// walkRoot lists a folder whose own entries decide the classes.
func (l *lister) walkRoot() error {
	entries, err := os.ReadDir(l.Root)
	if err != nil {
		return fmt.Errorf("images: %w; make the folder readable", err)
	}
	for _, entry := range inOrder(l.Root, entries) {
		before, errorsBefore := len(l.Items), len(l.Errors)
		isDir := l.visit(entry, "", len(l.Classes))
		switch {
		case !isDir:
		case len(l.Items) > before:
			l.Classes = append(l.Classes, entry.Name())
		case len(l.Errors) == errorsBefore:
			l.Empty = append(l.Empty, entry.Name())
		}
	}
	l.sortClasses()
	if len(l.Items) == 0 {
		if len(l.Errors) > 0 {
			return fmt.Errorf("%w in %s: %w", ErrNoImages, l.Root, l.Errors[0])
		}
		return fmt.Errorf("%w in %s; a folder of images was expected, or of one folder of images per class", ErrNoImages, l.Root)
	}
	if len(l.Classes) == 0 {
		l.Empty = nil
	}
	return nil
}

// sortClasses puts the classes, which come in the order of their images, into
// that of their names.
func (l *Listing) sortClasses() {
	if slices.IsSorted(l.Classes) {
		return // but for names like "cat" and "cat-2" always
	}
	walked := slices.Clone(l.Classes)
	slices.Sort(l.Classes)
	for i, item := range l.Items {
		if item.Label >= 0 {
			l.Items[i].Label, _ = slices.BinarySearch(l.Classes, walked[item.Label])
		}
	}
}

// inOrder sorts the entries of a folder so that a walk meets all paths in the
// order of their bytes: a folder counts as its name and a slash.
func inOrder(folder string, entries []fs.DirEntry) []fs.DirEntry {
	slash := make(map[fs.DirEntry]string)
	for _, e := range entries {
		isDir := e.IsDir()
		if e.Type()&fs.ModeSymlink != 0 {
			info, err := os.Stat(filepath.Join(folder, e.Name()))
			isDir = err == nil && info.IsDir()
		}
		if isDir {
			slash[e] = "/"
		}
	}
	if len(slash) > 0 { // else they are sorted by name
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name()+slash[a], b.Name()+slash[b]) })
	}
	return entries
}

// visit lists one entry of the folder rel ("" is the root), and all below it
// where it is a folder, which it then reports.
func (l *lister) visit(entry fs.DirEntry, rel string, label int) (isDir bool) {
	if l.ctx.Err() != nil {
		return false
	}
	rel = path.Join(rel, entry.Name())
	file := filepath.Join(l.Root, filepath.FromSlash(rel))
	fail := func(err error) { l.Errors = append(l.Errors, ListError{rel, err}) }
	info, err := os.Stat(file)
	switch {
	case err != nil:
		fail(err)
	case info.IsDir() && isHidden(entry.Name()):
		l.Hidden++
		return false
	case info.IsDir():
		if id := identify(file, info); l.seen[id] {
			return false
		} else {
			l.seen[id] = true
		}
		entries, err := os.ReadDir(file)
		if err != nil {
			fail(err)
		}
		for _, entry := range inOrder(file, entries) {
			l.visit(entry, rel, label)
		}
		return true
	case !info.Mode().IsRegular():
		l.Skipped++ // a socket or a device; reading one might never end
	case strings.HasPrefix(entry.Name(), "._"):
		l.Skipped++ // what macOS notes about the file of that name on other file systems
	default:
		if rel == entry.Name() {
			label = -1 // it lies in no class
		}
		image, err := isImage(file)
		switch {
		case err != nil:
			fail(err)
		case image:
			if strings.HasSuffix(file, rel) {
				rel = file[len(file)-len(rel):] // a million paths need not be in memory twice
			}
			l.add(Item{Path: rel, File: file, Label: label, Bytes: info.Size(), MTime: info.ModTime().UnixNano()})
		default:
			l.Skipped++
		}
	}
	return false
}

// privateFolders are made by systems and programs for themselves: thumbnails, what
// archives of macOS carry, what a file system check found, deleted files.
var privateFolders = []string{"@eadir", "#recycle", "__macosx", "lost+found", "$recycle.bin", "system volume information", "__pycache__"}

// isHidden tells whether a folder of that name holds nothing for people.
func isHidden(name string) bool {
	return strings.HasPrefix(name, ".") || slices.Contains(privateFolders, strings.ToLower(name))
}

// isImage tells whether the file is an image by its name or else its content.
func isImage(file string) (bool, error) {
	name := filepath.Base(file)
	if preprocess.IsImage(name, nil) {
		return true, nil
	}
	f, err := disk.Open(file, disk.Values)
	if err != nil {
		return false, err
	}
	defer f.Close()
	head := make([]byte, preprocess.HeadBytes)
	n, err := io.ReadFull(f, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return false, err
	}
	return preprocess.IsImage(name, head[:n]), nil
}

// entry is one line of a list.
type entry struct {
	path  string // relative, with forward slashes, not encoded
	label int64  // −1 where there is none
}

// readEntries reads an OpenOOD list.
func readEntries(file string) ([]entry, error) {
	text, err := disk.ReadFile(file, disk.List)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	entries, err := parseList(string(text))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", file, err)
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("%w in the list %s; it needs a \"path label\" a line", ErrNoImages, file)
	}
	return entries, nil
}

// readList lists the images that an OpenOOD list names, with the names of
// classes that another list gives, if any.
func (l *lister) readList(file, namesFile string) error {
	entries, err := readEntries(file)
	if err != nil {
		return err
	}
	names := classNames(entries)
	if namesFile != "" {
		others, err := readEntries(namesFile)
		if err != nil {
			return err
		}
		given := classNames(others)
		for label := range names {
			name, ok := given[label]
			if !ok {
				return fmt.Errorf("list %s: label %d is not in %s, which names the classes", file, label, namesFile)
			}
			names[label] = name
		}
	}
	labels := slices.Sorted(maps.Keys(names))
	for _, label := range labels {
		l.Classes = append(l.Classes, names[label])
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.path, b.path) })
	var missing int
	for _, e := range entries {
		if l.ctx.Err() != nil {
			return l.ctx.Err()
		}
		item := Item{Path: e.path, File: filepath.Join(l.Root, filepath.FromSlash(e.path)), Label: -1}
		if e.label >= 0 {
			item.Label, _ = slices.BinarySearch(labels, e.label)
		}
		if info, err := os.Stat(item.File); err == nil {
			item.Bytes, item.MTime = info.Size(), info.ModTime().UnixNano()
		} else {
			missing++
		}
		l.add(item)
	}
	if missing == len(entries) {
		return fmt.Errorf("%w: none of the %d files that the list %s names is in %s (%q …); name the folder that its paths start from",
			ErrNoImages, len(entries), file, l.Root, entries[0].path)
	}
	return nil
}

// parseList reads an OpenOOD list: one "path label" a line, the label being
// what follows the last blank, so that a path may hold blanks. Empty lines are
// passed over. Errors name the line.
func parseList(text string) ([]entry, error) {
	var entries []entry
	seen := map[string]int{}
	n := 0
	for line := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		n++
		line = strings.TrimRight(line, " \t\r\n")
		if line == "" {
			continue
		}
		at := strings.LastIndexAny(line, " \t")
		if at < 0 {
			return nil, fmt.Errorf("line %d: %q is not a path and a label with a blank between", n, line)
		}
		label, err := strconv.ParseInt(line[at+1:], 10, 64)
		if err != nil || label < -1 {
			return nil, fmt.Errorf("line %d: label %q is not an integer from 0, or -1 for none", n, line[at+1:])
		}
		name := path.Clean(filepath.ToSlash(strings.TrimRight(line[:at], " \t"))) // Windows writes them with backslashes
		if !filepath.IsLocal(filepath.FromSlash(name)) || name == "." {
			return nil, fmt.Errorf("line %d: path %q does not lie below the folder of the images; name one that it does", n, line[:at])
		}
		if first, ok := seen[name]; ok {
			return nil, fmt.Errorf("line %d: %q is in line %d already; remove one", n, name, first)
		}
		seen[name] = n
		entries = append(entries, entry{name, label})
	}
	return entries, nil
}

// classNames names every label from 0 that occurs, as [List] says.
func classNames(entries []entry) map[int64]string {
	// A list may have a million lines, but few folders.
	type place struct {
		folder string
		label  int64
	}
	places := map[place]bool{}
	for _, e := range entries {
		if e.label >= 0 {
			places[place{path.Dir(e.path), e.label}] = true
		}
	}
	first := map[int64]string{}         // a label's first place by name
	total := map[int64]int{}            // the number of its places
	under := map[string]map[int64]int{} // how many of them a folder's name is part of
	for p := range places {
		total[p.label]++
		if f, ok := first[p.label]; !ok || p.folder < f {
			first[p.label] = p.folder
		}
		parts := strings.Split(p.folder, "/")
		slices.Sort(parts)
		for _, name := range slices.Compact(parts) {
			if under[name] == nil {
				under[name] = map[int64]int{}
			}
			under[name][p.label]++
		}
	}
	names := map[int64]string{}
	for label, folder := range first {
		names[label] = strconv.FormatInt(label, 10)
		for _, name := range slices.Backward(strings.Split(folder, "/")) {
			if name != "." && len(under[name]) == 1 && under[name][label] == total[label] {
				names[label] = name
				break
			}
		}
	}
	// A folder may be called as another label is numbered; such names tell
	// nothing and give way to numbers, which are unique.
	for clash := true; clash; {
		clash = false
		taken := map[string]int{}
		for _, name := range names {
			taken[name]++
		}
		for label, name := range names {
			if id := strconv.FormatInt(label, 10); taken[name] > 1 && name != id {
				names[label], clash = id, true
			}
		}
	}
	return names
}
