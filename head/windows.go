package head

import (
	"cmp"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
)

// windows orders rows that do not fit into memory: blocks of consecutive rows
// come in random order, and the rows of a window of many blocks are shuffled.
// While one window is read, the next is fetched block by block.
type windows struct {
	data   features.Rows
	window int // rows; 0 means that all rows are one window, which fits
	block  int // rows

	current int   // the window being read; −1 for none
	next    []int // the blocks of the one after it
	asked   int   // how many of these were requested
}

// blockBytes is large enough for a disk to read at full speed, and small enough
// for a window to mix rows from many places.
const blockBytes = 256 << 10

// Window returns how many rows are shuffled together if they do not fit into
// memory, and 0 if they do.
func Window(data features.Rows, batch int) int { return newWindows(data, batch).window }

func newWindows(data features.Rows, batch int) windows {
	w := windows{data: data, block: max(1, blockBytes/(4*data.D)), current: -1}
	if n := data.Window(); 0 < n && n < data.Len() {
		w.window = max(1, n/batch) * batch
	}
	return w
}

// shuffle orders the rows for an epoch.
func (w *windows) shuffle(rows []int, rng random) {
	window := len(rows)
	if w.window > 0 {
		window = w.window
		rank := rng.Perm(slices.Max(rows)/w.block + 1)
		slices.SortFunc(rows, func(a, b int) int { return cmp.Or(rank[a/w.block]-rank[b/w.block], a-b) })
		w.current = -1
	}
	for part := range slices.Chunk(rows, window) {
		rng.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] })
	}
}

// fetch requests blocks of the next window, in proportion to the rows of this
// window that are done after the batch at.
func (w *windows) fetch(rows []int, at, batch int) {
	if w.window == 0 {
		return
	}
	if current := at / w.window; current != w.current {
		if current == 0 || w.current < 0 { // no fetch requested it
			w.need(w.blocks(rows, current))
		}
		w.current, w.next, w.asked = current, w.blocks(rows, current+1), 0
	}
	until := min((at%w.window+batch)*len(w.next)/w.window, len(w.next))
	w.need(w.next[w.asked:until])
	w.asked = until
}

func (w *windows) need(blocks []int) {
	for _, b := range blocks {
		w.data.Prefetch(b*w.block, (b+1)*w.block)
	}
}

// blocks lists the blocks of a window's rows, ascending.
func (w *windows) blocks(rows []int, window int) []int {
	from := min(window*w.window, len(rows))
	var all []int
	for _, r := range rows[from:min(from+w.window, len(rows))] {
		all = append(all, r/w.block)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
