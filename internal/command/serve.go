package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/access"
	"github.com/mlrbfn/mlrbfn/internal/version"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/serve"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// serving is the command serve.
type serving struct {
	*command
	opts                          serve.Options
	keep                          store.Images
	running                       *RunFlags
	load                          func(string) (*detector.Detector, error)
	files, shadows, listen, watch []string
	metrics, place, keepDir       string
	format                        string
	size                          float64
}

var _ = declare("serve", 70, "--detector DETECTOR [flags]", "Judge images that come over HTTP",
	`Answers POST /v1/detect with a verdict on the image that is its body, and the requests of the Open Inference Protocol (/v2). The page is at /, the description at /openapi.json.

The first SIGTERM lets requests end, the second does not. $MLRBFN_SERVE_STORE stands for --store.`, addServe)

func addServe(c *command) {
	v := &serving{command: c}
	c.sets(&v.opts, &v.keep)
	c.section("detectors")
	c.StringArrayVar(&v.files, "detector", nil, "file `[NAME=]DETECTOR` that train wrote (repeat for several; the first is the default)")
	c.means("detector", "Detector", "Detectors")
	c.StringArrayVar(&v.shadows, "shadow", nil, "`NAME=DETECTOR` that runs beside the detector NAME, to compare")
	c.means("shadow", "Shadows")
	v.load = addPublicKeyFlag(c.FlagSet)
	c.StringVar(&v.opts.Detectors.Model, "model", "", "`DIR` of the backbone of all detectors (default: where it was at training)")
	c.section("addresses")
	c.StringArrayVar(&v.listen, "listen", []string{"127.0.0.1:8080"}, "`ADDRESS`, or unix:FILE (repeat for several; sockets of systemd come first)")
	c.StringVar(&v.metrics, "metrics-listen", "", "`ADDRESS` of /metrics for Prometheus (default: none)")
	c.StringVar(&v.opts.TokenFile, "token-file", "", "`FILE` with tokens that requests need, with names and roles")
	c.BoolVar(&v.opts.OpenToAll, "insecure-without-token", false, "let everybody in who reaches the address")
	c.StringVar(&v.opts.CertFile, "tls-cert", "", "certificate `FILE`, read again when it changes")
	c.StringVar(&v.opts.KeyFile, "tls-key", "", "key `FILE` of the certificate")
	c.StringArrayVar(&v.opts.Hosts, "host", nil, "`NAME` that requests may call this service by, beside localhost")
	c.section("memory")
	c.StringVar(&v.place, "store", "", "remember verdicts in `FILE|postgres://…` (SQLite or PostgreSQL)")
	c.means("store", "Store")
	Choice(c.FlagSet, (*string)(&v.keep.Keep), "keep", "ood", "ood|all|none", "which images are kept beside the store")
	c.StringVar(&v.keepDir, "keep-dir", "", "`DIR` for them (default: the store's FILE with .images)")
	c.Float64Var(&v.size, "keep-size", 10, "`GIB` of images that are kept, the newest")
	c.means("keep-size", "MaxBytes")
	c.DurationVar(&v.keep.MaxAge, "keep-age", 0, "remove images after `TIME` (default: never)")
	c.IntVar(&v.opts.KeepFeatures, "keep-features", serve.DefaultKeepFeatures, "store the features of the newest `N` images, for learning (0: none; -1: all)")
	c.DurationVar(&v.opts.KeepVerdicts, "keep-verdicts", 0, "remove verdicts after `TIME`, such as 2160h, but for reviewed ones (default: never)")
	c.StringVar(&v.opts.LearnDir, "learn-dir", "", "`DIR` for detectors that learn from reviews (default: the store's FILE with .learned)")
	c.Float64Var(&v.opts.Alpha, "alpha", serve.DefaultAlpha, "`CHANCE` that an alarm of drift is ever raised without cause")
	c.Float64Var(&v.opts.MaxFalseAlarms, "max-false-alarms", 0, "raise an alarm when a larger `SHARE` of images is flagged (default: what the detector promises)")
	c.StringArrayVar(&v.opts.Sources, "source", nil, "`NAME` of a source that is watched for drift by itself, all others together (repeat; default: the first 63 that come)")
	c.means("source", "Sources")
	c.StringArrayVar(&v.watch, "watch", nil, "judge the images that come to lie in `[SOURCE=]DIR`, too (repeat for several; needs --store)")
	c.means("watch", "Folders")
	c.DurationVar(&v.opts.FolderSettle, "watch-settle", images.WatchSettle, "a file of --watch is whole when it has not changed for `TIME`")
	c.means("watch-settle", "Settle")
	c.DurationVar(&v.opts.FolderEvery, "watch-every", images.WatchEvery, "look into the folders of --watch every `TIME`")
	c.StringVar(&v.opts.Webhook, "webhook", "", "tell `URL` of flagged images and of drift (CloudEvents; needs --store and --webhook-secret)")
	c.StringVar(&v.opts.WebhookSecret, "webhook-secret", "", "`FILE` with the secret that signs what --webhook sends")
	Choice(c.FlagSet, &v.opts.WebhookOn, "webhook-on", "ood", "ood|all|drift", "what --webhook is told: flagged verdicts and drift, all verdicts and drift, or drift alone")
	c.DurationVar(&v.opts.WebhookTimeout, "webhook-timeout", 0, "give an attempt to tell --webhook up after `TIME` (default: 10s)")
	v.addLimits()
	c.section("log")
	Choice(c.FlagSet, &v.format, "log", "text", "text|json", "form of the log on standard error")
	c.addQuiet("log no requests, only what is wrong or changes")
	c.rare("host", "keep-dir", "keep-size", "keep-age", "keep-features", "keep-verdicts", "learn-dir", "alpha", "max-false-alarms", "source", "watch-settle", "watch-every", "webhook-secret", "webhook-on", "webhook-timeout", "max-images", "per-client", "per-client-connections", "trusted-proxy", "read-timeout", "drain", "drain-delay", "poll",
		"threads", "provider", "open-timeout", "allow-drifted-features", "image-timeout", "onnxruntime", "shadow")
	c.required, c.environment = []string{"detector"}, "MLRBFN_SERVE"
	c.run = v.run
}

func (v *serving) addLimits() {
	c := v.command
	c.section("limits")
	c.IntVar(&v.opts.Running, "workers", 0, "images in work at once (default: one per core)")
	c.IntVar(&v.opts.Waiting, "waiting", serve.DefaultWaiting, "images that wait at most; more are refused (429)")
	c.DurationVar(&v.opts.Timeout, "timeout", serve.DefaultTimeout, "refuse (503) what takes longer than `TIME`")
	c.Int64Var(&v.opts.MaxBody, "max-body", serve.DefaultMaxBody, "`BYTES` of a request at most (413)")
	c.IntVar(&v.opts.MaxImages, "max-images", 0, "images of a request at most (default: 64)")
	c.IntVar(&v.opts.PerClient, "per-client", 0, "requests of one address at once (default: half of all; -1: no bound)")
	c.IntVar(&v.opts.PerClientConns, "per-client-connections", serve.DefaultPerClientConns, "connections of one address (-1: no bound)")
	c.StringArrayVar(&v.opts.TrustedProxies, "trusted-proxy", nil, "`NETWORK` of proxies whose X-Forwarded-For is believed, such as 10.0.0.0/8; unix for a Unix socket")
	c.DurationVar(&v.opts.ReadTimeout, "read-timeout", serve.DefaultReadTimeout, "`TIME` for sending a request")
	c.DurationVar(&v.opts.DrainDelay, "drain-delay", 0, "at the end, take requests for another `TIME` while /readyz says no (behind a balancer: 5s)")
	c.DurationVar(&v.opts.Drain, "drain", serve.DefaultDrain, "`TIME` for requests that have begun, at the end")
	c.DurationVar(&v.opts.Poll, "poll", serve.DefaultPoll, "look every `TIME` whether a detector's file changed")
	backbone := &v.opts.Detectors.Backbone
	c.IntVar(&backbone.IntraOpThreads, "threads", 0, "threads of the model for each image (default: 1)")
	c.StringVar(&backbone.Device, "device", "cpu", "`DEVICE` for the model: "+strings.Join(extractor.Devices(), "|"))
	annotate(c.Lookup("device"), offered, extractor.Devices()...)
	c.StringVar(&backbone.Provider, "provider", "", "plug-in `FILE` of onnxruntime for the device (default: the library's own)")
	c.DurationVar(&backbone.OpenTimeout, "open-timeout", 0, "give up on a model that takes longer than `TIME` to open (default: 2m, more above 200 MB)")
	c.Int64Var(&backbone.MaxPixels, "max-pixels", serve.DefaultMaxPixels, "refuse images of more pixels (422)")
	c.DurationVar(&backbone.ImageTimeout, "image-timeout", serve.DefaultImageTimeout, "refuse an image that takes longer than `TIME` to decode (422)")
	addDriftFlag(c.FlagSet, &backbone.AllowDriftedFeatures)
	v.running = &RunFlags{backbone, AddLibraryFlag(c.FlagSet)}
}

// fromEnvironment sets the flags that are not given from variables: those that may be
// repeated have a value in each line.
func (c *command) fromEnvironment() error {
	if c.environment == "" {
		return nil
	}
	var all error
	c.VisitAll(func(f *pflag.Flag) {
		name := c.environment + "_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		text, ok := os.LookupEnv(name)
		if !ok || f.Changed {
			return
		}
		values := []string{text}
		if f.Value.Type() == "stringArray" {
			values = strings.Split(strings.TrimSpace(text), "\n")
		}
		for _, value := range values {
			if err := c.Set(f.Name, value); err != nil {
				all = errors.Join(all, Usagef("$%s: %w", name, err))
			}
		}
	})
	return all
}

// check reads the flags.
func (v *serving) check(s Streams) error {
	if err := v.running.Check(); err != nil {
		return err
	}
	for _, list := range []struct {
		flag string
		args []string
		to   *[]serve.Named
	}{{"detector", v.files, &v.opts.Detectors.Detectors}, {"shadow", v.shadows, &v.opts.Detectors.Shadows}} {
		for _, arg := range list.args {
			named, err := namedDetector(arg)
			if err != nil || list.flag == "shadow" && named.File == arg {
				return Usagef("--%s %s: it is NAME=DETECTOR, and a name has letters, digits and . _ -", list.flag, arg)
			}
			*list.to = append(*list.to, named)
		}
	}
	for _, arg := range v.watch {
		v.opts.Folders = append(v.opts.Folders, watchedFolder(arg))
	}
	if v.place == "" && (v.Changed("keep") || v.Changed("keep-size") || v.Changed("keep-features") || v.Changed("learn-dir")) {
		return Usagef("--keep goes with --store")
	}
	v.opts.Quiet = v.quiet
	v.opts.Log = slog.New(slog.NewTextHandler(s.Err, nil))
	if v.format == "json" {
		v.opts.Log = slog.New(slog.NewJSONHandler(s.Err, nil))
	}
	return nil
}

// openStore opens the memory of verdicts and the images that are kept beside it.
func (v *serving) openStore(ctx context.Context) (err error) {
	if v.opts.Store, err = store.Open(ctx, v.place); err != nil {
		return err
	}
	file := strings.TrimPrefix(v.place, "sqlite:")
	if v.opts.LearnDir == "" && !store.IsPostgres(v.place) {
		v.opts.LearnDir = file + ".learned"
	}
	v.keep.MaxBytes = int64(v.size * (1 << 30))
	switch {
	case v.keep.Keep == store.KeepNone:
	case strings.Contains(v.place, "://") && v.keepDir == "":
		return Usagef("--store %s…: name the folder of images by --keep-dir, or keep none by --keep none", "postgres://")
	default:
		if err = v.keep.Open(cmp.Or(v.keepDir, file+".images")); err == nil {
			v.opts.Images = &v.keep
		}
	}
	return err
}

func (v *serving) run(ctx context.Context, s Streams) (err error) {
	if err := v.check(s); err != nil {
		return err
	}
	if err := v.running.LoadRuntime(); err != nil {
		return err
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(extractor.DecodeMemory() * 2) // or images that are done would take as much again
	}
	v.opts.Version = version.Version
	v.opts.Detectors.Load = v.load
	v.opts.Detectors.Backbone.Drifted = func(text string) { v.opts.Log.Warn(text) }
	defer func() {
		if v.opts.Images != nil {
			err = errors.Join(err, v.opts.Images.Close())
		}
		if v.opts.Store != nil {
			err = errors.Join(err, v.opts.Store.Close())
		}
	}()
	if v.place != "" {
		if err := v.openStore(ctx); err != nil {
			return err
		}
	}
	listeners, err := listenAll(v.listen, v.Changed("listen"))
	if err != nil {
		return err
	}
	var forMetrics net.Listener
	if v.metrics != "" {
		forMetrics, err = listenOn(v.metrics)
	}
	var server *serve.Server
	if err == nil {
		server, err = serve.New(ctx, v.opts)
	}
	if err != nil {
		for _, l := range append(listeners, forMetrics) {
			if l != nil {
				l.Close()
			}
		}
		return err
	}
	defer server.Close()
	if err := access.Notify("READY=1"); err != nil {
		v.opts.Log.Warn("systemd could not be told", "error", err)
	}
	return server.Serve(ctx, listeners, forMetrics)
}

// detectorName matches the names that a detector may have in requests and paths.
var detectorName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// namedDetector reads [NAME=]FILE. Without a name it is that of the file.
func namedDetector(arg string) (serve.Named, error) {
	if name, file, ok := strings.Cut(arg, "="); ok && detectorName.MatchString(name) && file != "" {
		return serve.Named{Name: name, File: file}, nil
	}
	name := filepath.Base(arg)
	if name == detector.BundleFile {
		if dir, err := filepath.Abs(arg); err == nil {
			name = filepath.Base(filepath.Dir(dir))
		}
	}
	name = strings.TrimSuffix(name, filepath.Ext(name))
	if !detectorName.MatchString(name) {
		return serve.Named{}, fmt.Errorf("%q is no name", name)
	}
	return serve.Named{Name: name, File: arg}, nil
}

// watchedFolder reads [SOURCE=]DIR. Without a source it is the name of the folder.
func watchedFolder(arg string) serve.WatchedFolder {
	if source, dir, ok := strings.Cut(arg, "="); ok && source != "" && dir != "" && !strings.ContainsAny(source, `/\`) {
		return serve.WatchedFolder{Source: source, Dir: dir}
	}
	name := filepath.Base(arg)
	if dir, err := filepath.Abs(arg); err == nil {
		name = filepath.Base(dir)
	}
	return serve.WatchedFolder{Source: name, Dir: arg}
}

// listenAll opens the sockets of systemd and, if there are none or the flag is given,
// those of addresses.
func listenAll(addresses []string, given bool) ([]net.Listener, error) {
	listeners, err := access.Inherited()
	if err != nil || len(listeners) > 0 && !given {
		return listeners, err
	}
	for _, address := range addresses {
		l, err := listenOn(address)
		if err != nil {
			for _, l := range listeners {
				l.Close()
			}
			return nil, err
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

func listenOn(address string) (net.Listener, error) {
	if file, ok := strings.CutPrefix(address, "unix:"); ok {
		l, err := net.Listen("unix", file)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
		// A service that was killed leaves its socket.
		if info, failed := os.Lstat(file); failed != nil || info.Mode()&os.ModeSocket == 0 {
			return nil, err
		}
		if conn, dialled := net.Dial("unix", file); dialled == nil {
			conn.Close()
			return nil, err
		}
		if failed := os.Remove(file); failed != nil {
			return nil, errors.Join(err, failed)
		}
		return net.Listen("unix", file)
	}
	return net.Listen("tcp", address)
}
