// Package images gives images one after another, from wherever they come: folders and
// OpenOOD's lists of their files, idx files (MNIST), lists of paths or URLs, tars as the
// package webdataset writes them, Parquet files, folders of buckets, and a folder that
// fills. Tars are read from start to end, from the disk or from a bucket, and nothing is
// copied to the disk.
//
// A program reads buckets and web servers if it imports the package for them:
//
//	import _ "github.com/mlrbfn/mlrbfn/bucket/s3"
package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// maxImage bounds the bytes of the file of an image.
const maxImage = 1 << 30

// kind says what a unit is.
type kind uint8

const (
	single kind = iota // a file
	tarball
	table
)

// A Unit is read from its start to its end: a file of many images, or an image. There may
// be very many, so that they hold no more than they must.
type Unit struct {
	Path    string // below the listing's root, with forward slashes
	Size    int64  // in bytes; −1 if nobody said
	Version string // changes with the content; "" if nobody said
	MTime   int64  // in nanoseconds since 1970; 0 if nobody said
	Label   string // of an image; "" if it has none

	from  *origin
	rare  *rare // nil for nearly all
	kind  kind
	whole bool // the server sends nothing but all of it
	tag   bool // Version is what the server calls its ETag
}

// origin is a folder with units.
type origin struct {
	folder *bucket.Folder // nil on the disk
	dir    string         // its complete name, which ends with a slash
	prefix string         // what comes before the paths in the complete names of the units
}

// rare is what few units have.
type rare struct {
	name string // the complete one, if it is not that of the path
	err  error
}

// Name returns the complete name: the path of a file, or a URL.
func (u *Unit) Name() string {
	if u.rare != nil && u.rare.name != "" {
		return u.rare.name
	}
	return u.from.prefix + u.Path
}

// Err returns why it cannot be read, or nil.
func (u *Unit) Err() error {
	if u.rare == nil {
		return nil
	}
	return u.rare.err
}

func (u *Unit) fail(err error) {
	if err != nil {
		u.rare = &rare{err: err}
	}
}

// object returns the folder that it is in, which is nil on the disk, and its name there.
func (u *Unit) object() (*bucket.Folder, string) {
	return u.from.folder, strings.TrimPrefix(u.Name(), u.from.dir)
}

// etag returns what its server calls so; "" if it has none.
func (u *Unit) etag() string {
	if !u.tag {
		return ""
	}
	return u.Version
}

// Many tells whether the unit is a file of many images.
func (u *Unit) Many() bool { return u.kind != single }

// Sources holds the units that a user named.
type Sources struct {
	// Root is the deepest folder, or URL of one, that all units are in; "" if there is
	// none, and paths are complete.
	Root string
	// Units are sorted by Path.
	Units []Unit
	// Skipped counts files in named folders that are no images.
	Skipped int
}

// A ref is an image that is somewhere else.
type ref struct{ Path, Label string }

// A tableRow is an image in a table.
type tableRow struct {
	Number int64 // of the row, from 0
	Data   []byte
	Label  string // "" if it has none
	Err    error  // why there is no Data
}

// kindOf tells by its name what an object is.
func kindOf(name string) (k kind, isImage bool) {
	lower := strings.ToLower(name)
	for _, end := range []string{".tar", ".tar.gz", ".tgz"} {
		if strings.HasSuffix(lower, end) {
			return tarball, false
		}
	}
	if path.Ext(lower) == ".parquet" {
		return table, false
	}
	return single, preprocess.IsImage(name, nil)
}

// isList tells by its name whether a file lists images.
func isList(name string) bool {
	return slices.Contains([]string{".txt", ".lst", ".urls"}, strings.ToLower(path.Ext(name)))
}

// withoutQuery cuts off what follows the path of a web server's URL.
func withoutQuery(name string) string {
	if strings.HasPrefix(name, "http") && bucket.IsURL(name) {
		name, _, _ = strings.Cut(name, "?")
	}
	return name
}

// AreSources tells whether [ListSources] reads what was named, and not [List]: tars,
// tables, what lies in buckets, patterns, several of anything. Lists says whether a text on
// the disk lists images, or is a file that is no image.
func AreSources(lists bool, names ...string) bool {
	if len(names) != 1 {
		return len(names) > 1
	}
	info, err := os.Stat(names[0])
	switch {
	case bucket.IsURL(names[0]):
		return true
	case err != nil:
		return strings.ContainsAny(names[0], "{*?[")
	case info.IsDir():
		return len(manyIn(names[0])) > 0
	}
	k, _ := kindOf(names[0])
	return k != single || lists && isList(names[0])
}

// manyIn returns the tars and tables in a folder that has neither images nor folders.
func manyIn(folder string) (names []string) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		k, isImage := kindOf(e.Name())
		switch {
		case strings.HasPrefix(e.Name(), "."):
		case e.IsDir() || isImage:
			return nil
		case k != single:
			names = append(names, filepath.Join(folder, e.Name()))
		}
	}
	return names
}

// lister is at work on a listing.
type sourceLister struct {
	Sources
	lists   int                // read so far, one in another
	origins map[string]*origin // by their names
	text    *strings.Builder   // see keep
}

// from returns the origin of units in a folder.
func (l *sourceLister) from(folder *bucket.Folder, dir string) *origin {
	if !strings.HasSuffix(dir, "/") {
		dir += "/"
	}
	o := l.origins[dir]
	if o == nil {
		o = &origin{folder, dir, dir}
		l.origins[dir] = o
	}
	return o
}

// keep returns the text of parts together. It lies beside others, as an allocation of its
// own takes more memory.
func (l *sourceLister) keep(parts ...string) string {
	n := 0
	for _, part := range parts {
		n += len(part)
	}
	if l.text == nil || n > l.text.Cap()-l.text.Len() {
		l.text = &strings.Builder{}
		l.text.Grow(max(n, 64<<10))
	}
	from := l.text.Len()
	for _, part := range parts {
		l.text.WriteString(part)
	}
	return l.text.String()[from:]
}

const (
	maxUnits = 1 << 28 // more do not fit into memory
	maxLists = 1 << 10
	statsAt  = 64 // objects that are asked about at once
)

// List finds what the names stand for: tars, Parquet files, images, lists of them (.txt,
// one path or URL a line, then perhaps a tab and a label) and folders of them, on the
// disk, in buckets and, but for folders, on web servers. {00..99} and {a,b} in a name
// stand for several, and so do * and ? except on web servers. In folders of images the
// first folder is the class.
//
// A tar that cannot be found is a unit with an error, unless all cannot.
func ListSources(ctx context.Context, names ...string) (*Sources, error) {
	l := &sourceLister{origins: map[string]*origin{}}
	for _, name := range names {
		expanded, err := expand(name)
		if err != nil {
			return nil, options.Errorf("Images", "%w", err)
		}
		for _, name := range expanded {
			if err := l.add(ctx, name, ""); err != nil {
				return nil, err
			}
		}
	}
	if err := l.stat(ctx); err != nil {
		return nil, err
	}
	if err := l.refer(ctx); err != nil {
		return nil, err
	}
	l.place()
	var first error
	for i := range l.Units {
		if first = l.Units[i].Err(); first == nil {
			return &l.Sources, nil
		}
	}
	if first != nil {
		return nil, fmt.Errorf("%w: none of %d could be opened; the first: %w", ErrNoImages, len(l.Units), first)
	}
	return nil, fmt.Errorf("%w in %s", ErrNoImages, strings.Join(names, " "))
}

// push adds a unit.
func (l *sourceLister) push(u Unit) error {
	if len(l.Units) == maxUnits {
		return fmt.Errorf("more than %d files", maxUnits)
	}
	l.Units = append(l.Units, u)
	return nil
}

// add adds what a name stands for.
func (l *sourceLister) add(ctx context.Context, name, label string) error {
	if bucket.IsURL(name) {
		return l.addURL(ctx, name, label)
	}
	name, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	info, err := os.Stat(name)
	if err != nil && strings.ContainsAny(name, "*?[") {
		found, globErr := filepath.Glob(name)
		if globErr != nil || len(found) == 0 {
			return fmt.Errorf("images: nothing is called %s", name)
		}
		for _, name := range found {
			if err := l.add(ctx, name, label); err != nil {
				return err
			}
		}
		return nil
	}
	dir, file := path.Split(filepath.ToSlash(name))
	u := Unit{Path: l.keep(file), Label: label, Size: -1, from: l.from(nil, dir)}
	u.kind, _ = kindOf(name)
	u.fail(err)
	switch {
	case err != nil:
		return l.push(u)
	case info.IsDir():
		return l.addFolder(ctx, name)
	case isList(name):
		text, err := disk.ReadFile(name, disk.List)
		if err != nil {
			return err
		}
		return l.addList(ctx, dir, name, string(text))
	}
	u.Size, u.MTime = info.Size(), info.ModTime().UnixNano()
	u.Version = strconv.FormatInt(u.MTime, 10)
	return l.push(u)
}

// addFolder adds the tars and tables of a folder on the disk, or else its images.
func (l *sourceLister) addFolder(ctx context.Context, folder string) error {
	if many := manyIn(folder); len(many) > 0 {
		for _, name := range many {
			if err := l.add(ctx, name, ""); err != nil {
				return err
			}
		}
		return nil
	}
	listing, err := List(ctx, ListOptions{Root: folder})
	if err != nil {
		return err
	}
	l.Skipped += listing.Skipped
	from := l.from(nil, filepath.ToSlash(folder))
	l.Units = slices.Grow(l.Units, len(listing.Items))
	for _, item := range listing.Items {
		if item.InIDX() {
			return options.Errorf("Images", "%s is an idx file, which goes with no other images", item.File)
		}
		u := Unit{Path: l.keep(item.Path), Size: item.Bytes, MTime: item.MTime, from: from}
		if item.Label >= 0 {
			u.Label = listing.Classes[item.Label]
		}
		if err := l.push(u); err != nil {
			return err
		}
	}
	for _, e := range listing.Errors {
		u := Unit{Path: e.Path, Size: -1, from: from}
		u.fail(e.Err)
		if err := l.push(u); err != nil {
			return err
		}
	}
	return nil
}

// addURL adds an object, or what is in a folder of a bucket.
func (l *sourceLister) addURL(ctx context.Context, url, label string) error {
	at, err := bucket.Parse(url)
	if err != nil {
		return err
	}
	k, isImage := kindOf(withoutQuery(url))
	web := strings.HasPrefix(at.Scheme, "http")
	switch {
	case isList(withoutQuery(url)):
		text, _, err := bucket.ReadFile(ctx, url, disk.List)
		if err != nil {
			return fmt.Errorf("images: %w", err)
		}
		folder, _, err := bucket.OpenObject(ctx, url)
		if err != nil {
			return err
		}
		return l.addList(ctx, folder.String(), url, string(text))
	case !web && strings.ContainsAny(at.Key, "*?["):
		return l.addPattern(ctx, at)
	case k == single && !isImage && (!web || strings.HasSuffix(at.Key, "/") || at.Key == ""):
		if web {
			return options.Errorf("Images", "%s: a web server does not say what is in a folder; name a list (.txt) of URLs", url)
		}
		folder, err := bucket.Open(ctx, url)
		if err != nil {
			return err
		}
		before, skipped := len(l.Units), l.Skipped
		err = l.addObjects(ctx, folder, "", func(string) bool { return true })
		switch {
		case err != nil || len(l.Units) > before || l.Skipped > skipped:
			return err
		case at.Key == "" || strings.HasSuffix(at.Key, "/"):
			return fmt.Errorf("images: there is nothing in %s", folder)
		}
		// It is no folder: an object whose name does not end in what it is.
	}
	folder, name, err := bucket.OpenObject(ctx, url)
	if err != nil {
		return err
	}
	return l.push(Unit{Path: l.keep(name), Label: label, Size: -1, from: l.from(folder, folder.String()), kind: k})
}

// addPattern adds the objects of a bucket whose keys match a pattern.
func (l *sourceLister) addPattern(ctx context.Context, at bucket.Location) error {
	pattern := at.Key
	fixed := pattern[:strings.IndexAny(pattern, "*?[")]
	slash := strings.LastIndex(fixed, "/") + 1
	if _, err := path.Match(pattern, ""); err != nil {
		return options.Errorf("Images", "%s: %w", at, err)
	}
	at.Key = pattern[:slash]
	folder, err := bucket.Open(ctx, at.String())
	if err != nil {
		return err
	}
	before := len(l.Units)
	err = l.addObjects(ctx, folder, fixed[slash:], func(name string) bool {
		ok, err := path.Match(pattern[slash:], name)
		return err == nil && ok
	})
	if err == nil && len(l.Units) == before {
		return fmt.Errorf("images: nothing in %s is called %s", folder, pattern[slash:])
	}
	return err
}

// addObjects adds the objects of a bucket that are images, tars or tables.
func (l *sourceLister) addObjects(ctx context.Context, folder *bucket.Folder, prefix string, take func(name string) bool) error {
	from := l.from(folder, folder.String())
	for o, err := range folder.List(ctx, prefix) {
		if err != nil {
			return fmt.Errorf("images: %w", err)
		}
		k, isImage := kindOf(o.Name)
		if !take(o.Name) {
			continue
		}
		if k == single && !isImage || strings.HasPrefix(path.Base(o.Name), "._") {
			l.Skipped++
			continue
		}
		u := Unit{Path: l.keep(o.Name), from: from, kind: k}
		o.ETag = l.keep(o.ETag)
		u.know(o)
		if class, _, ok := strings.Cut(u.Path, "/"); ok && k == single {
			u.Label = class
		}
		if err := l.push(u); err != nil {
			return err
		}
	}
	return nil
}

// know notes what a store says of an object.
func (u *Unit) know(o bucket.Object) {
	u.Size, u.Version, u.tag, u.whole = o.Size, o.ETag, o.ETag != "", o.Whole
	if !o.Modified.IsZero() {
		u.MTime = o.Modified.UnixNano()
	}
	if u.Version == "" && u.MTime != 0 {
		u.Version = strconv.FormatInt(u.MTime, 10)
	}
}

// addList adds what a list names. Paths in it are relative to the folder it is in.
func (l *sourceLister) addList(ctx context.Context, folder, name, text string) error {
	if l.lists++; l.lists > maxLists {
		return options.Errorf("Images", "%s: more than %d lists that name each other", name, maxLists)
	}
	n := 0
	for line := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		n++
		entry, label, ok := strings.Cut(line, "\t")
		if !ok && bucket.IsURL(line) {
			entry, label, _ = strings.Cut(line, " ")
		}
		if entry = strings.TrimSpace(entry); !bucket.IsURL(entry) && (bucket.IsURL(folder) || !filepath.IsAbs(entry)) {
			entry = folder + strings.TrimPrefix(filepath.ToSlash(entry), "./")
		}
		if bucket.IsURL(folder) && !bucket.IsURL(entry) {
			return options.Errorf("Images", "%s: %s is no URL", name, entry)
		}
		before := len(l.Units)
		if err := l.add(ctx, entry, strings.TrimSpace(label)); err != nil {
			return fmt.Errorf("list %s: %w", name, err)
		}
		for i := before; i < len(l.Units); i++ {
			l.Units[i].Label = cmp.Or(strings.TrimSpace(label), l.Units[i].Label)
		}
	}
	if n == 0 {
		return fmt.Errorf("%w in the list %s; it needs a path or URL a line", ErrNoImages, name)
	}
	return nil
}

// stat asks about the tars and tables of which nothing is known.
func (l *sourceLister) stat(ctx context.Context) error {
	group, ctx := parallel.WithContext(ctx)
	group.SetLimit(statsAt)
	for i := range l.Units {
		u := &l.Units[i]
		if u.from.folder == nil || u.Size >= 0 || u.kind == single {
			continue
		}
		folder, name := u.object()
		group.Go(func() error {
			o, err := folder.Stat(ctx, name)
			if err != nil {
				u.fail(err)
				return ctx.Err()
			}
			u.know(o)
			if u.Size < 0 {
				u.fail(errors.New("the server does not say how large it is"))
			} else if u.whole && u.kind == table {
				u.fail(errors.New("the server sends files only as a whole, and a Parquet file is read in parts: copy it to the disk"))
			}
			return nil
		})
	}
	return group.Wait()
}

// refer replaces the tables that only refer to images by these images.
func (l *sourceLister) refer(ctx context.Context) error {
	if !slices.ContainsFunc(l.Units, func(u Unit) bool { return u.kind == table }) {
		return nil
	}
	refs := make([][]ref, len(l.Units))
	group, groupCtx := parallel.WithContext(ctx)
	group.SetLimit(statsAt)
	for i := range l.Units {
		u := &l.Units[i]
		if u.kind != table || u.Err() != nil {
			continue
		}
		group.Go(func() error {
			r, done, err := u.readerAt(groupCtx)
			if err == nil {
				defer done()
				var ok bool
				if refs[i], ok, err = parquetRefs(groupCtx, r, u.Size); ok && refs[i] == nil {
					refs[i] = []ref{}
				}
			}
			if u.fail(err); err != nil {
				refs[i] = nil
			}
			return groupCtx.Err()
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	units := l.Units
	l.Units = nil
	for i, u := range units {
		if refs[i] == nil {
			l.Units = append(l.Units, u)
			continue
		}
		for _, ref := range refs[i] {
			name := ref.Path
			if !bucket.IsURL(name) && (u.from.folder != nil || !filepath.IsAbs(name)) {
				name = u.from.dir + strings.TrimPrefix(filepath.ToSlash(name), "./")
			}
			if u.from.folder != nil && !bucket.IsURL(name) {
				return options.Errorf("Images", "%s: %s is no URL", u.Name(), name)
			}
			if k, _ := kindOf(withoutQuery(name)); k != single || isList(withoutQuery(name)) {
				return options.Errorf("Images", "%s: %s is no image", u.Name(), name)
			}
			if err := l.add(ctx, name, ref.Label); err != nil {
				return err
			}
		}
	}
	return nil
}

// place sets the root and the paths, and sorts the units.
func (l *sourceLister) place() {
	if len(l.Units) == 0 {
		return
	}
	dir := func(i int) string { return cmp.Or(strings.TrimSuffix(l.Units[i].from.dir, "/"), "/") }
	root := dir(0)
	for i := range l.Units {
		root = common(root, dir(i))
	}
	if strings.HasSuffix(root, ":/") || strings.HasSuffix(root, ":") { // a scheme alone
		root = ""
	}
	prefix := root
	if l.Root = root; root != "" && root != "/" {
		prefix += "/"
	}
	for i := range l.Units {
		u := &l.Units[i]
		if below := u.from.dir[len(prefix):]; below != "" {
			u.Path = l.keep(below, u.Path)
		}
		if u.from.folder != nil && strings.Contains(u.Path, "?") {
			name := prefix + u.Path
			u.rare = &rare{name, u.Err()}
			u.Path = strings.TrimPrefix(withoutQuery(name), prefix)
		}
	}
	for _, from := range l.origins {
		from.prefix = prefix
	}
	inOrder := func(a, b Unit) int {
		if order := cmp.Compare(a.Path, b.Path); order != 0 {
			return order
		}
		return cmp.Compare(a.Name(), b.Name())
	}
	slices.SortStableFunc(l.Units, inOrder)
	l.Units = slices.CompactFunc(l.Units, func(a, b Unit) bool { return a.Path == b.Path && a.Name() == b.Name() })
	// URLs may differ by their queries alone.
	for from := 0; from < len(l.Units); {
		to := from + 1
		for to < len(l.Units) && l.Units[to].Path == l.Units[from].Path {
			to++
		}
		for i := from; i < to && to > from+1; i++ {
			u := &l.Units[i]
			u.Path = strings.TrimPrefix(u.Name(), prefix)
		}
		from = to
	}
	slices.SortStableFunc(l.Units, inOrder)
}

// common returns the deepest folder that two folders are in.
func common(a, b string) string {
	for a != b {
		if len(a) < len(b) {
			a, b = b, a
		}
		slash := strings.LastIndex(a, "/")
		if slash < 0 {
			return ""
		}
		a = a[:slash]
	}
	return a
}

// maxNames bounds what one name stands for.
const maxNames = 1 << 20

// expand returns what {a,b} and {00..99} in a name stand for, as shells have it.
func expand(name string) ([]string, error) {
	if !bucket.IsURL(name) {
		if _, err := os.Stat(name); err == nil {
			return []string{name}, nil
		}
	}
	names := []string{""}
	for rest := name; ; {
		before, after, ok := strings.Cut(rest, "{")
		inside, behind, closed := strings.Cut(after, "}")
		if !ok || !closed {
			before, behind = rest, ""
		}
		parts := []string{""}
		if ok && closed {
			var err error
			if parts, err = alternatives(inside); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		if len(names)*len(parts) > maxNames {
			return nil, fmt.Errorf("%s stands for more than %d names", name, maxNames)
		}
		all := make([]string, 0, len(names)*len(parts))
		for _, n := range names {
			for _, part := range parts {
				all = append(all, n+before+part)
			}
		}
		names = all
		if rest = behind; !ok || !closed {
			return names, nil
		}
	}
}

// alternatives returns what stands between braces.
func alternatives(inside string) ([]string, error) {
	first, last, ok := strings.Cut(inside, "..")
	if !ok {
		return strings.Split(inside, ","), nil
	}
	from, fromErr := strconv.ParseUint(first, 10, 48)
	to, toErr := strconv.ParseUint(last, 10, 48)
	if fromErr != nil || toErr != nil || to < from || to-from >= maxNames {
		return nil, fmt.Errorf("{%s} is no range such as {000..099}", inside)
	}
	width := 0
	if len(first) > 1 && first[0] == '0' || len(last) > 1 && last[0] == '0' {
		width = max(len(first), len(last))
	}
	var all []string
	for i := from; i <= to; i++ {
		all = append(all, fmt.Sprintf("%0*d", width, i))
	}
	return all, nil
}

// read reads bytes of a unit.
func (u *Unit) read(ctx context.Context, data []byte, off int64) error {
	folder, name := u.object()
	if folder == nil {
		f, err := disk.Open(filepath.FromSlash(u.Name()), disk.Values)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err = f.ReadAt(data, off); err == io.EOF {
			err = fmt.Errorf("the file is shorter than it was: %w", io.ErrUnexpectedEOF)
		}
		return err
	}
	if len(data) == 0 {
		return nil
	}
	r, o, err := folder.OpenRange(ctx, name, off, int64(len(data)), u.etag())
	if err != nil {
		return err
	}
	// Some stores tell the time of an object to the second, and in lists more exactly.
	changed := o.Size >= 0 && o.Size != u.Size || u.MTime != 0 && !o.Modified.IsZero() && o.Modified.Unix() != u.MTime/1e9
	if !u.tag && changed {
		return errors.Join(fmt.Errorf("%s: %w", u.Name(), bucket.ErrChanged), r.Close())
	}
	_, err = io.ReadFull(r, data)
	return errors.Join(err, r.Close())
}

// readWhole reads an image of up to most bytes. The Object has its size, also where that is
// too much, and its time, as far as these are known.
func (u *Unit) readWhole(ctx context.Context, most int64) (data []byte, o bucket.Object, err error) {
	if folder, name := u.object(); folder != nil {
		return folder.Read(ctx, name, most)
	}
	f, err := disk.Open(filepath.FromSlash(u.Name()), maxImage)
	if err != nil {
		return nil, o, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, o, err
	}
	o.Size, o.Modified = info.Size(), info.ModTime()
	if o.Size > most {
		return nil, o, bucket.ErrSize
	}
	data = make([]byte, o.Size)
	_, err = io.ReadFull(f, data)
	return data, o, err
}

// readerAt opens a table. It is read in blocks, of which some are read ahead.
func (u *Unit) readerAt(ctx context.Context) (io.ReaderAt, func(), error) {
	if u.from.folder == nil {
		f, err := disk.Open(filepath.FromSlash(u.Name()), disk.Values)
		if err != nil {
			return nil, nil, err
		}
		return f, func() { f.Close() }, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	b := &blocks{unit: u, have: map[int64]*block{}}
	b.running, b.ctx = parallel.WithContext(ctx)
	return b, func() { cancel(); _ = b.running.Wait() }, nil
}

const (
	blockSize   = 2 << 20
	blocksAhead = 8
	mostBlocks  = 24
)

// blocks reads an object in blocks and keeps the last ones.
type blocks struct {
	unit    *Unit
	ctx     context.Context
	running *parallel.Group

	mu    sync.Mutex
	have  map[int64]*block
	order []int64
}

type block struct {
	ready chan struct{}
	data  []byte
	err   error
}

// get returns a block, which is perhaps on its way.
func (b *blocks) get(n int64) *block {
	b.mu.Lock()
	defer b.mu.Unlock()
	if one := b.have[n]; one != nil {
		return one
	}
	if len(b.order) == mostBlocks {
		delete(b.have, b.order[0])
		b.order = b.order[1:]
	}
	one := &block{ready: make(chan struct{})}
	b.have[n], b.order = one, append(b.order, n)
	b.running.Go(func() error {
		one.data = make([]byte, min(blockSize, b.unit.Size-n*blockSize))
		one.err = b.unit.read(b.ctx, one.data, n*blockSize)
		close(one.ready) // a panic ends ctx instead
		return nil
	})
	return one
}

func (b *blocks) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		at := off + int64(n)
		if at >= b.unit.Size || at < 0 {
			return n, io.EOF
		}
		number := at / blockSize
		one := b.get(number)
		for ahead := number + 1; ahead <= number+blocksAhead && ahead*blockSize < b.unit.Size; ahead++ {
			b.get(ahead)
		}
		select {
		case <-one.ready:
		case <-b.ctx.Done():
			return n, b.ctx.Err()
		}
		if one.err != nil {
			return n, one.err
		}
		n += copy(p[n:], one.data[at-number*blockSize:])
	}
	return n, nil
}

// gone tells whether an error is the content's, and another try would find the same.
func gone(err error) bool {
	return err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, bucket.ErrSize) || errors.Is(err, disk.ErrSize)
}
