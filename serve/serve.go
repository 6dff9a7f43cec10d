// Package serve is a detector as a service over HTTP: it judges images that come one
// by one, remembers what it said, and shows it on a page.
//
// [New] opens the detectors, and [Server.Serve] answers requests until its context is
// cancelled. Requests are answered by types that know only what they need: what judges,
// what remembers, what watches for drift. This file wires them. Packages beside it know
// nothing of HTTP: pool keeps detectors open and replaces them, learn trains them on
// reviews, store remembers, webhook tells others.
package serve

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/access"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/serve/internal/learn"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
	"github.com/mlrbfn/mlrbfn/serve/internal/webhook"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// Options says what a service serves, to whom, and how much of it at once. Of all but
// Detectors the zero value is the usual way.
type Options struct {
	// Detectors are the detectors and how images are read. Log and Changed are set by
	// this package; a MaxPixels of 0 is DefaultMaxPixels, an ImageTimeout of 0
	// DefaultImageTimeout.
	Detectors Detectors
	// Poll is how often the files of detectors are looked at; 0 is DefaultPoll.
	Poll time.Duration

	// Running is how many images are judged at once; 0 is one for each processor.
	// Waiting is how many more are let in; 0 is DefaultWaiting. Requests beyond them
	// are refused with status 429.
	Running, Waiting int
	// Timeout bounds how long a request waits and is worked on; 0 is DefaultTimeout.
	Timeout time.Duration
	// ReadTimeout bounds how long a client takes to send a request; 0 is
	// DefaultReadTimeout.
	ReadTimeout time.Duration
	// DrainDelay is how long requests are still taken at the end, while /readyz says that
	// no more are to come: until who sends them has heard of it.
	DrainDelay time.Duration
	// Drain bounds how long requests may take that are not answered at the end; 0 is
	// DefaultDrain.
	Drain time.Duration
	// Quiet leaves requests that did not fail out of the log.
	Quiet bool
	// MaxBody bounds the bytes of a request; 0 is DefaultMaxBody.
	MaxBody int64
	// MaxImages bounds the images of a request; 0 is DefaultMaxImages, or fewer if
	// that many are never let in at once.
	MaxImages int
	// PerClient bounds the requests that one address has in work, and PerClientConns
	// its connections; 0 is half of Running and Waiting, and DefaultPerClientConns; −1
	// is no bound.
	PerClient, PerClientConns int
	// TrustedProxies are the addresses and networks (10.0.0.0/8) of proxies, and "unix" is
	// who comes by a Unix socket: their clients are those that X-Forwarded-For names.
	TrustedProxies []string

	// TokenFile has the tokens that requests need, one a line; "" lets in everybody
	// who reaches the address.
	TokenFile string
	// OpenToAll allows an address that other machines reach without TokenFile.
	OpenToAll bool
	// CertFile and KeyFile, unless "", are the certificate for TLS and its key.
	CertFile, KeyFile string
	// Hosts are the names that requests may call this service by, beside localhost and
	// addresses.
	Hosts []string

	// Store remembers verdicts, and Images the images beside it; nil remembers nothing.
	// The caller closes them afterwards.
	Store  store.Store
	Images *store.Images
	// Folders are watched: each image that comes to lie in one is judged once, its verdict
	// is stored. They need a Store. FolderEvery and FolderSettle are those of
	// [images.Watched].
	Folders                   []WatchedFolder
	FolderEvery, FolderSettle time.Duration
	// Webhook, unless "", is the address that is told of verdicts and alarms, of which
	// WebhookOn says which, signed by the secrets of the file WebhookSecret; see package
	// webhook.
	Webhook, WebhookSecret, WebhookOn string
	// WebhookTimeout bounds one attempt to tell it; 0 is 10 s.
	WebhookTimeout time.Duration
	// KeepFeatures is of how many of the newest verdicts the features are stored, too,
	// which learning and groups of look-alikes need; 0 stores none, −1 those of all.
	// Features of reviewed images stay.
	KeepFeatures int
	// KeepVerdicts is how long verdicts are kept, but for reviewed ones; 0 is for ever.
	KeepVerdicts time.Duration
	// LearnDir is a folder for the detectors that learn from reviews; "" is no learning.
	// Replicas share one.
	LearnDir string
	// Alpha is the chance that an alarm of drift is ever raised without cause, for each
	// source; 0 is DefaultAlpha.
	Alpha float64
	// MaxFalseAlarms is the share of images that may be flagged, above which an alarm is
	// raised; 0 is what each detector promises.
	MaxFalseAlarms float64
	// Sources are those that are watched each by itself, and all others together; nil is the
	// first that come.
	Sources []string
	// Log gets what happens; nil logs nothing.
	Log *slog.Logger
	// Version is that of the program.
	Version string
}

// Defaults of Options.
const (
	DefaultPoll           = 2 * time.Second
	DefaultWaiting        = 128
	DefaultTimeout        = 30 * time.Second
	DefaultReadTimeout    = 30 * time.Second
	DefaultDrain          = 30 * time.Second
	DefaultMaxBody        = 32 << 20
	DefaultMaxImages      = 64
	DefaultPerClientConns = 256
	DefaultMaxPixels      = 50_000_000
	DefaultImageTimeout   = 5 * time.Second
	DefaultAlpha          = 0.01
	DefaultKeepFeatures   = 20_000
)

// mostRows is how many images are judged together while others wait: with so many, a
// verdict costs little beside the features, and an answer is hardly later.
const mostRows = 8

// Limits of every connection.
const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10 // bytes
)

// Server is a service. Serve or Handler answers requests; Close ends it.
type Server struct {
	responder
	opts      Options
	detectors *pool.Set
	judge     *judge
	memory    *memory
	clients   *access.Clients
	proxies   *access.Proxies
	tokens    *access.Tokens // nil where none is needed
	wrong     wrongTokens
	cert      *access.Certificate // nil without TLS
	events    *hub
	drift     *drifts
	folders   *folders
	webhook   *webhook.Webhook // or nil
	learner   *learn.Learner   // or nil
	draining  atomic.Bool
	refusedAt atomic.Int64 // seconds: when the log last told of connections

	stop       context.CancelFunc // ends what runs beside requests
	background sync.WaitGroup
	endFolders context.CancelFunc // ends the watching of folders
	inflow     sync.WaitGroup
}

// New opens the detectors and whatever else the options name.
func New(ctx context.Context, opts Options) (_ *Server, err error) {
	fill(&opts)
	if err := check(&opts); err != nil {
		return nil, err
	}
	s := &Server{opts: opts, events: newHub()}
	s.responder = responder{log: opts.Log, timeout: opts.Timeout, reading: opts.ReadTimeout, metrics: newMetrics(),
		places: newPlaces(opts.Running, opts.Waiting, opts.PerClient, extractor.DecodeMemory())}
	s.wrong.log = opts.Log
	s.drift = newDrifts(&s.opts, s.metrics.unwatched.Inc)
	s.memory = &memory{images: opts.Images, features: opts.KeepFeatures != 0, drift: s.drift, events: s.events, metrics: s.metrics, log: s.log}
	s.judge = newJudge(s.places, s.memory)
	if err := s.openAccess(); err != nil {
		return nil, err
	}
	opts.Detectors.Log = s.log
	opts.Detectors.Changed = s.metrics.changed
	if s.detectors, err = pool.Open(ctx, opts.Detectors); err != nil {
		return nil, err
	}
	if opts.Store != nil {
		s.memory.queue = store.NewQueue(opts.Store, s.log)
	}
	s.folders = &folders{detectors: s.detectors, judge: s.judge, store: opts.Store, explain: s.explain, log: s.log}
	if err := errors.Join(s.folders.open(&opts), s.openWebhook(ctx)); err != nil {
		return nil, errors.Join(err, s.closeStore())
	}
	s.openLearner(ctx)
	s.metrics.watch(s)
	beside, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.background.Go(func() { s.detectors.Watch(beside, opts.Poll) })
	s.background.Go(func() { s.drift.run(beside, s.detectors) })
	s.drift.takeOver(ctx, s.detectors)
	if s.webhook != nil {
		s.background.Go(func() { s.runWebhook(beside) })
	}
	inflow, end := context.WithCancel(beside)
	s.endFolders = end
	for _, f := range s.folders.watched {
		s.inflow.Go(func() { f.Run(inflow) })
	}
	if s.learner != nil {
		s.background.Go(func() { every(beside, followEvery, func() { s.learner.Follow(beside) }) })
	}
	if opts.Store != nil && opts.KeepFeatures > 0 {
		s.background.Go(func() {
			s.dropFeatures(beside)
			every(beside, featuresEvery, func() { s.dropFeatures(beside) })
		})
	}
	if opts.Store != nil {
		s.background.Go(func() {
			s.prune(beside)
			s.sayHead(beside)
			every(beside, headEvery, func() {
				s.prune(beside)
				s.sayHead(beside)
			})
		})
	}
	return s, nil
}

// headEvery is how often the log has the head of the audit trail, and old verdicts go.
const headEvery = time.Hour

// sayHead logs the head of the audit trail: where logs are kept elsewhere, it proves all
// lines before.
func (s *Server) sayHead(ctx context.Context) {
	if head, err := s.opts.Store.Head(ctx); err == nil {
		s.log.Info("the head of the audit trail", "head", head.String())
	}
}

// prune removes verdicts that are too old.
func (s *Server) prune(ctx context.Context) {
	if s.opts.KeepVerdicts <= 0 {
		return
	}
	all := 0
	for n := -1; n != 0; all += n {
		var err error
		if n, err = s.opts.Store.Prune(ctx, time.Now().Add(-s.opts.KeepVerdicts), "mlrbfn serve"); err != nil {
			if ctx.Err() == nil {
				s.log.Warn("old verdicts were not removed", "error", err)
			}
			return
		}
	}
	if all > 0 {
		s.log.Info("old verdicts were removed", "lines", all)
	}
}

// openAccess opens what says who may use the service.
func (s *Server) openAccess() (err error) {
	s.clients = access.NewClients(max(0, s.opts.PerClient))
	if s.proxies, err = access.ParseProxies(s.opts.TrustedProxies); err != nil {
		return options.Errorf("TrustedProxies", "%w", err)
	}
	if s.opts.TokenFile != "" {
		if s.tokens, err = access.OpenTokens(s.opts.TokenFile, s.log); err != nil {
			return options.Errorf("TokenFile", "%w", err)
		}
	}
	if s.opts.CertFile != "" {
		if s.cert, err = access.OpenCertificate(s.opts.CertFile, s.opts.KeyFile, s.log); err != nil {
			return options.Errorf("CertFile", "%w", err)
		}
	}
	return nil
}

// fill puts the defaults in.
func fill(o *Options) {
	o.Poll = cmp.Or(o.Poll, DefaultPoll)
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, DefaultReadTimeout)
	o.Drain = cmp.Or(o.Drain, DefaultDrain)
	o.Detectors.Backbone.ImageTimeout = cmp.Or(o.Detectors.Backbone.ImageTimeout, DefaultImageTimeout)
	o.Detectors.Backbone.MaxPixels = cmp.Or(o.Detectors.Backbone.MaxPixels, DefaultMaxPixels)
	o.Running = cmp.Or(o.Running, runtime.GOMAXPROCS(0))
	o.Waiting = cmp.Or(o.Waiting, DefaultWaiting)
	o.MaxImages = cmp.Or(o.MaxImages, min(DefaultMaxImages, o.Running+o.Waiting))
	o.PerClient = cmp.Or(o.PerClient, max(1, (o.Running+o.Waiting)/2))
	o.PerClientConns = cmp.Or(o.PerClientConns, DefaultPerClientConns)
	o.Alpha = cmp.Or(o.Alpha, DefaultAlpha)
	o.MaxBody = cmp.Or(o.MaxBody, DefaultMaxBody)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
}

func check(o *Options) error {
	for _, bound := range []struct {
		option string
		value  int64
	}{
		{"Running", int64(o.Running)}, {"Waiting", int64(o.Waiting)}, {"MaxImages", int64(o.MaxImages)}, {"MaxBody", o.MaxBody},
		{"Timeout", int64(o.Timeout)}, {"ReadTimeout", int64(o.ReadTimeout)}, {"Drain", int64(o.Drain)}, {"Poll", int64(o.Poll)},
	} {
		if bound.value < 1 {
			return options.Errorf(bound.option, "it must be positive")
		}
	}
	switch {
	case o.PerClient < -1:
		return options.Errorf("PerClient", "%d: -1 is no bound", o.PerClient)
	case o.PerClientConns < -1:
		return options.Errorf("PerClientConns", "%d: -1 is no bound", o.PerClientConns)
	case o.MaxImages > o.Running+o.Waiting:
		return options.Errorf("MaxImages", "requests of %d images are never let in, as at most %d images run and wait", o.MaxImages, o.Running+o.Waiting)
	case (o.CertFile == "") != (o.KeyFile == ""):
		return options.Errorf("CertFile", "a certificate needs its key, and a key its certificate")
	case o.MaxFalseAlarms < 0 || o.MaxFalseAlarms >= 1:
		return options.Errorf("MaxFalseAlarms", "%g: a share lies between 0 and 1", o.MaxFalseAlarms)
	case len(o.Sources) >= maxSources:
		return options.Errorf("Sources", "%d; %d can be watched", len(o.Sources), maxSources-1)
	case !(o.Alpha > 0 && o.Alpha < 1):
		return options.Errorf("Alpha", "%g: a chance lies between 0 and 1", o.Alpha)
	}
	return nil
}

// Serve answers requests on the listeners until ctx is cancelled, and then those that
// have begun. Metrics, unless nil, is where metrics are offered. It closes all listeners.
func (s *Server) Serve(ctx context.Context, listeners []net.Listener, metrics net.Listener) error {
	all := slices.Clone(listeners)
	if metrics != nil {
		all = append(all, metrics)
	}
	closeAll := func() {
		for _, l := range all {
			l.Close()
		}
	}
	for _, l := range all {
		if err := access.CheckAddress(l.Addr()); err != nil && s.tokens == nil {
			if !s.opts.OpenToAll {
				closeAll()
				return options.Errorf("TokenFile", "%s: %w", l.Addr(), err)
			}
			s.log.Warn("EVERYBODY who reaches this address can use the service, read what it remembers and replace detectors by their files: there is no token", "address", l.Addr().String())
		} else if err != nil && s.cert == nil {
			s.log.Warn("tokens and images travel unencrypted to this address: name a certificate, or let nothing but a proxy with TLS reach it", "address", l.Addr().String())
		}
	}
	var servers []*http.Server
	group, ctx := errgroup.WithContext(ctx)
	requests, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	start := func(l net.Listener, handler http.Handler) {
		server := &http.Server{
			Handler: handler, ReadHeaderTimeout: min(headerTimeout, s.opts.ReadTimeout), ReadTimeout: s.opts.ReadTimeout, IdleTimeout: idleTimeout,
			WriteTimeout: s.opts.ReadTimeout + s.opts.Timeout + 10*time.Second, MaxHeaderBytes: maxHeader,
			ErrorLog:    slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
			BaseContext: func(net.Listener) context.Context { return requests },
			ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
				return context.WithValue(ctx, spareConn{}, access.Spare(conn))
			},
		}
		l = access.Limit(l, access.NewClients(max(0, s.opts.PerClientConns)), s.proxies, s.notAccepted)
		if s.cert != nil {
			server.TLSConfig = s.cert.Config()
			server.TLSConfig.NextProtos = []string{"h2", "http/1.1"}
			l = tls.NewListener(l, server.TLSConfig)
		}
		servers = append(servers, server)
		group.Go(func() error {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}
	handler := s.Handler()
	for _, l := range listeners {
		s.log.Info("listening", "address", l.Addr().String(), "detectors", len(s.opts.Detectors.Detectors))
		start(l, handler)
	}
	if metrics != nil {
		start(metrics, s.MetricsHandler())
	}
	group.Go(func() error {
		<-ctx.Done()
		return s.drain(requests, servers)
	})
	return group.Wait()
}

// drain ends servers: not ready at first, but serving, then only what has begun.
func (s *Server) drain(requests context.Context, servers []*http.Server) error {
	s.draining.Store(true)
	if s.opts.DrainDelay > 0 {
		s.log.Info("not ready: requests are still taken for a while", "delay", s.opts.DrainDelay)
		_ = wait(requests, s.opts.DrainDelay) // which nothing cancels before
	}
	s.events.close()
	s.endFolders()
	s.log.Info("ending: requests that have begun are answered", "at_most", s.opts.Drain)
	deadline, cancel := context.WithTimeout(requests, s.opts.Drain)
	defer cancel()
	var ends errgroup.Group
	for _, server := range servers {
		ends.Go(func() error {
			if err := server.Shutdown(deadline); err != nil {
				s.log.Error("some requests were not answered in time", "error", err)
				return server.Close()
			}
			return nil
		})
	}
	return ends.Wait()
}

// notAccepted counts a connection that was ended or not taken, and says so once a minute.
func (s *Server) notAccepted(address string, err error) {
	s.metrics.connections.Inc()
	now := time.Now()
	if told := s.refusedAt.Load(); now.Unix()-told < 60 || !s.refusedAt.CompareAndSwap(told, now.Unix()) {
		return
	}
	if err != nil {
		s.log.Error("connections cannot be taken: out of file descriptors, if it says too many open files", "error", err)
		return
	}
	s.log.Warn("connections are ended: their client has more than it may", "client", access.ClientOf(address), "bound", s.opts.PerClientConns)
}

// Close ends the service, once no request is worked on any more.
func (s *Server) Close() {
	s.events.close()
	s.endFolders()
	s.inflow.Wait()
	if s.learner != nil {
		s.learner.Close()
	}
	s.judge.flights.Wait()
	s.stop()
	s.background.Wait()
	if err := s.closeStore(); err != nil {
		s.log.Error("some verdicts were not stored", "error", err)
	}
}

// closeStore stores what waits, and closes the detectors.
func (s *Server) closeStore() (err error) {
	if s.memory.queue != nil {
		ctx, cancel := context.WithTimeout(context.Background(), s.opts.Drain)
		defer cancel()
		err = s.memory.queue.Close(ctx)
	}
	s.detectors.Close()
	return err
}

// Detectors says which detectors the service judges by, and how they are opened; Named is
// one of them, under the name that requests call it by.
type (
	Detectors = pool.Options
	Named     = pool.Named
)
