package command

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDiscover: of a folder with images of a new kind, the page shows these beside training
// images, says how many can be known ones, and has the command that makes a class of them.
func TestDiscover(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for i := range 120 {
		spot(t, filepath.Join("photos", "<b>disc", fmt.Sprint(i, ".png")), 0, i, false)
		spot(t, filepath.Join("photos", "stripe", fmt.Sprint(i, ".png")), 1, i, false)
	}
	for i := range 40 {
		spot(t, filepath.Join("new", fmt.Sprint("known", i, ".png")), i%2, 500+i, false)
		spot(t, filepath.Join("new", fmt.Sprint("<i>", i, ".png")), 2, 600+i, true)
	}
	write(t, filepath.Join("new", "broken.png"), "no image")
	extract := func(from string, code int) {
		call(t, code, "extract", "--model", "pixels", "--size", "8", "--images", from, "--out", from+".features", "--quiet")
	}
	extract("photos", done)
	call(t, done, "train", "--features", "photos.features", "--out", "my detector", "--calibration", "0.4", "--quiet", "--no-assess")
	page := func(code int, args ...string) (out, text string) {
		t.Helper()
		out, _ = call(t, code, append([]string{"discover", "--detector", "my detector", "--json", "--quiet", "--report", "pages/new.html"}, args...)...)
		read, err := os.ReadFile("pages/new.html")
		if err != nil {
			t.Fatal(err)
		}
		return out, string(read)
	}
	out, text := page(partial, "new")
	found := 0
	for _, line := range lines(t, out) {
		if line["new"] == true {
			found++
		}
		if line["group"] == 0. && !strings.Contains(line["path"].(string), "<i>") {
			t.Errorf("%v", line)
		}
	}
	for _, want := range []string{
		fmt.Sprintf("%d of 80 images are called new. Of these %d at most ", found, found), "Group 0, nearest to ", "nearest in training", "&lt;i&gt;1", "data:image/jpeg", "broken.png",
		"mlrbfn train --detector &#39;my detector&#39; --add NAME=new/group-0.txt --out NEW.safetensors", " new --out new",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(text, "<i>") || strings.Contains(text, "<b>disc") || strings.Contains(text, "not shown") {
		t.Error("a name is markup, or a picture is missing")
	}
	if _, text = page(partial, "--out", "lists", "new"); !strings.Contains(text, "NAME=lists/group-0.txt") || strings.Contains(text, "--out new") {
		t.Error("the page does not name the lists that were written")
	}
	// Of rows, pictures come from the folder of the images.
	extract("new", partial)
	pictures := strings.Count(text, "data:image/jpeg")
	if _, text = page(done, "--features", "new.features"); strings.Count(text, "data:image/jpeg") != pictures || strings.Contains(text, "--add") {
		t.Errorf("of rows the page shows %d pictures, of images %d", strings.Count(text, "data:image/jpeg"), pictures)
	}
	if err := os.Rename("new", "gone"); err != nil {
		t.Fatal(err)
	}
	if _, text = page(done, "--features", "new.features"); !strings.Contains(text, `<span class="path">&lt;i&gt;`) {
		t.Error("images that are gone are not named")
	}
	write(t, "mine.html", "mine")
	fails(t, "mine.html", "discover", "--detector", "my detector", "--report", "mine.html", "gone")
}
