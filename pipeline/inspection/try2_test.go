package inspection

import (
	"fmt"
	"image"
	_ "image/jpeg"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
)

func TestTry2(t *testing.T) {
	if os.Getenv("TRY2") == "" {
		t.Skip()
	}
	files, _ := filepath.Glob(os.Getenv("TRY2") + "/*/*__*.jpg")
	low := map[string][]float64{}
	coarse := map[string][]float64{}
	for _, f := range files {
		kind := f[strings.Index(f, "__"):]
		g := f[:strings.Index(f, "__")] + ".JPEG"
		read := func(n string) *picture { r, _ := os.Open(n); defer r.Close(); im, _, _ := image.Decode(r); return pictureOf(im) }
		a, b := read(f), read(g)
		low[kind] = append(low[kind], max(correlation(a, window{w: 1, h: 1}, b), correlation(a, window{w: 1, h: 1, mirrored: true}, b)))
		coarse[kind] = append(coarse[kind], alike(a, b))
	}
	for k, v := range low {
		sort.Float64s(v)
		sort.Float64s(coarse[k])
		fmt.Printf("%s start %.3f  alike %.3f\n", k, v[:4], coarse[k][:4])
	}
}
