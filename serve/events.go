package serve

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// event is a flagged image, as the page hears of it.
type event struct {
	ID       string    `json:"id"`
	Time     time.Time `json:"time"`
	Source   string    `json:"source"`
	Name     string    `json:"name"`
	Detector string    `json:"detector_name"`
	Image    string    `json:"image"`
	detector.Verdict
	Stored bool `json:"stored"`
	Kept   bool `json:"kept"` // whether /v1/images has the image
}

// hub tells those who listen about events. Who is too slow misses some.
type hub struct {
	mu        sync.Mutex
	listeners map[chan event]bool
	closed    chan struct{}
	once      sync.Once
}

// Limits of the hub.
const (
	maxListeners = 64
	maxUnread    = 64
	heartbeat    = 15 * time.Second
)

func newHub() *hub { return &hub{listeners: map[chan event]bool{}, closed: make(chan struct{})} }

func (h *hub) publish(e event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for l := range h.listeners {
		select {
		case l <- e:
		default:
		}
	}
}

// listen returns where events come from here on, or nil if there are too many who
// listen.
func (h *hub) listen() (events chan event, end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.listeners) == maxListeners {
		return nil, nil
	}
	events = make(chan event, maxUnread)
	h.listeners[events] = true
	return events, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.listeners, events)
	}
}

// close ends all listening.
func (h *hub) close() { h.once.Do(func() { close(h.closed) }) }

// listenToEvents answers GET /v1/events: flagged images as they come, as server-sent
// events.
func (s *Server) listenToEvents(w http.ResponseWriter, r *http.Request) {
	events, end := s.events.listen()
	if events == nil {
		s.busy(w, r, fmt.Sprintf("%d listen already", maxListeners))
		return
	}
	defer end()
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // or it would end the events
	w.Header().Set("Content-Type", "text/event-stream")
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	text := ": flagged images\n\n"
	for {
		// The time for the whole answer does not hold here, but one for each event.
		if err := control.SetWriteDeadline(time.Now().Add(heartbeat)); err != nil {
			return
		}
		if _, err := fmt.Fprint(w, text); err != nil {
			return
		}
		if err := control.Flush(); err != nil {
			return
		}
		select {
		case e := <-events:
			data, err := json.Marshal(e)
			if err != nil {
				return
			}
			text = fmt.Sprintf("event: flagged\nid: %s\ndata: %s\n\n", e.ID, data)
		case <-tick.C:
			text = ": still here\n\n"
		case <-s.events.closed:
			return
		case <-r.Context().Done():
			return
		}
	}
}
