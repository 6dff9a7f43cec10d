package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/access"
	"github.com/mlrbfn/mlrbfn/internal/version"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/serve"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

var _ = declare("serve", 70, newServe)

func newServe() *command {
	c := newCommand("serve", "--detector DETECTOR [flags]", "Judge images that come over HTTP",
		`Answers POST /v1/detect with a verdict on the image that is its body, and the requests of the Open Inference Protocol (/v2). The page is at /, the description at /openapi.json.

The first Ctrl-C or SIGTERM lets requests that have begun end, the second leaves at once.`)
	var opts serve.Options
	c.section("detectors")
	files := c.StringArray("detector", nil, "file `[NAME=]DETECTOR` that train wrote (repeat for several; the first is the default)")
	shadows := c.StringArray("shadow", nil, "`NAME=DETECTOR` that runs beside the detector NAME, to compare")
	load := addPublicKeyFlag(c.FlagSet)
	c.StringVar(&opts.Detectors.Model, "model", "", "`DIR` of the backbone of all detectors (default: where it was at training)")
	c.section("addresses")
	listen := c.StringArray("listen", []string{"127.0.0.1:8080"}, "`ADDRESS`, or unix:FILE (repeat for several; sockets of systemd come first)")
	metrics := c.String("metrics-listen", "", "`ADDRESS` of /metrics for Prometheus (default: none)")
	c.StringVar(&opts.TokenFile, "token-file", "", "`FILE` with tokens, one a line, that requests need")
	c.BoolVar(&opts.OpenToAll, "insecure-without-token", false, "let everybody in who reaches the address")
	c.StringVar(&opts.CertFile, "tls-cert", "", "certificate `FILE`, read again when it changes")
	c.StringVar(&opts.KeyFile, "tls-key", "", "key `FILE` of the certificate")
	c.StringArrayVar(&opts.Hosts, "host", nil, "`NAME` that requests may call this service by, beside localhost")
	c.section("memory")
	place := c.String("store", "", "remember verdicts in `FILE|postgres://…` (SQLite or PostgreSQL)")
	keep := store.ImagesOptions{}
	kept := ""
	Choice(c.FlagSet, &kept, "keep", "ood", "ood|all|none", "which images are kept beside the store")
	keepDir := c.String("keep-dir", "", "`DIR` for them (default: the store's FILE with .images)")
	size := c.Float64("keep-size", 10, "`GIB` of images that are kept, the newest")
	c.DurationVar(&keep.MaxAge, "keep-age", 0, "remove images after `TIME` (default: never)")
	c.IntVar(&opts.KeepFeatures, "keep-features", serve.DefaultKeepFeatures, "store the features of the newest `N` images, for learning (0: none; -1: all)")
	c.StringVar(&opts.LearnDir, "learn-dir", "", "`DIR` for detectors that learn from reviews (default: the store's FILE with .learned)")
	c.Float64Var(&opts.Alpha, "alpha", serve.DefaultAlpha, "`CHANCE` that an alarm of drift is ever raised without cause")
	watch := c.StringArray("watch", nil, "judge the images that come to lie in `[SOURCE=]DIR`, too (repeat for several; needs --store)")
	c.DurationVar(&opts.FolderSettle, "watch-settle", images.WatchSettle, "a file of --watch is whole when it has not changed for `TIME`")
	c.DurationVar(&opts.FolderEvery, "watch-every", images.WatchEvery, "look into the folders of --watch every `TIME`")
	c.StringVar(&opts.Webhook, "webhook", "", "tell `URL` of flagged images and of drift (CloudEvents; needs --store and --webhook-secret)")
	c.StringVar(&opts.WebhookSecret, "webhook-secret", "", "`FILE` with the secret that signs what --webhook sends")
	Choice(c.FlagSet, &opts.WebhookOn, "webhook-on", "ood", "ood|all|drift", "what --webhook is told: flagged verdicts and drift, all verdicts and drift, or drift alone")
	c.DurationVar(&opts.WebhookTimeout, "webhook-timeout", 0, "give an attempt to tell --webhook up after `TIME` (default: 10s)")
	c.section("limits")
	c.IntVar(&opts.Running, "workers", 0, "images in work at once (default: one per core)")
	c.IntVar(&opts.Waiting, "waiting", serve.DefaultWaiting, "images that wait at most; more are refused (429)")
	c.DurationVar(&opts.Timeout, "timeout", serve.DefaultTimeout, "refuse (503) what takes longer than `TIME`")
	c.Int64Var(&opts.MaxBody, "max-body", serve.DefaultMaxBody, "`BYTES` of a request at most (413)")
	c.IntVar(&opts.MaxImages, "max-images", 0, "images of a request at most (default: 64)")
	c.IntVar(&opts.PerClient, "per-client", 0, "requests of one address at once (default: half of all; -1: no bound)")
	c.IntVar(&opts.PerClientConns, "per-client-connections", serve.DefaultPerClientConns, "connections of one address (-1: no bound)")
	c.StringArrayVar(&opts.TrustedProxies, "trusted-proxy", nil, "`NETWORK` of proxies whose X-Forwarded-For is believed, such as 10.0.0.0/8; unix for a Unix socket")
	c.DurationVar(&opts.ReadTimeout, "read-timeout", serve.DefaultReadTimeout, "`TIME` for sending a request")
	c.DurationVar(&opts.Drain, "drain", serve.DefaultDrain, "`TIME` for requests that have begun, at the end")
	c.DurationVar(&opts.Poll, "poll", serve.DefaultPoll, "look every `TIME` whether a detector's file changed")
	run, backbone := &opts.Detectors.Run, &opts.Detectors.Backbone
	c.IntVar(&backbone.IntraOpThreads, "threads", 0, "threads of the model for each image (default: 1)")
	c.StringVar(&backbone.Device, "device", "cpu", "`DEVICE` for the model: "+strings.Join(extractor.Devices(), "|"))
	annotate(c.Lookup("device"), offered, extractor.Devices()...)
	c.StringVar(&backbone.Provider, "provider", "", "plug-in `FILE` of onnxruntime for the device (default: the library's own)")
	c.DurationVar(&backbone.OpenTimeout, "open-timeout", 0, "give up on a model that takes longer than `TIME` to open (default: 2m, more above 200 MB)")
	c.Int64Var(&run.MaxPixels, "max-pixels", serve.DefaultMaxPixels, "refuse images of more pixels (422)")
	c.DurationVar(&run.ImageTimeout, "image-timeout", serve.DefaultImageTimeout, "refuse an image that takes longer than `TIME` to decode (422)")
	addDriftFlag(c.FlagSet, backbone)
	images := &RunFlags{run, backbone, AddLibraryFlag(c.FlagSet)}
	c.section("log")
	format := ""
	Choice(c.FlagSet, &format, "log", "text", "text|json", "form of the log on standard error")
	quiet := c.Bool("quiet", false, "log no requests, only what is wrong or changes")
	c.rare("host", "keep-dir", "keep-size", "keep-age", "keep-features", "learn-dir", "alpha", "watch-settle", "watch-every", "webhook-secret", "webhook-on", "webhook-timeout", "max-images", "per-client", "per-client-connections", "trusted-proxy", "read-timeout", "drain", "poll",
		"threads", "provider", "open-timeout", "allow-drifted-features", "image-timeout", "onnxruntime", "shadow")
	c.required = []string{"detector"}
	c.run = func(ctx context.Context, s Streams) (err error) {
		if err := c.noArgs(); err != nil {
			return err
		}
		if err := images.Check(); err != nil {
			return err
		}
		for _, list := range []struct {
			flag string
			args []string
			to   *[]serve.Named
		}{{"detector", *files, &opts.Detectors.Detectors}, {"shadow", *shadows, &opts.Detectors.Shadows}} {
			for _, arg := range list.args {
				named, err := namedDetector(arg)
				if err != nil || list.flag == "shadow" && named.File == arg {
					return Usagef("--%s %s: it is NAME=DETECTOR, and a name has letters, digits and . _ -", list.flag, arg)
				}
				*list.to = append(*list.to, named)
			}
		}
		for _, arg := range *watch {
			opts.Folders = append(opts.Folders, watchedFolder(arg))
		}
		level := slog.LevelInfo
		if *quiet {
			level = slog.LevelWarn
		}
		opts.Log = slog.New(slog.NewTextHandler(s.Err, &slog.HandlerOptions{Level: level}))
		if format == "json" {
			opts.Log = slog.New(slog.NewJSONHandler(s.Err, &slog.HandlerOptions{Level: level}))
		}
		opts.Version = version.Version
		opts.Detectors.Load = func(file string) (*detector.Detector, error) { return load(file) }
		if err := images.LoadRuntime(); err != nil {
			return err
		}
		backbone.Drifted = func(text string) { opts.Log.Warn(text) }
		if *place == "" && (c.Changed("keep") || c.Changed("keep-size") || c.Changed("keep-features") || c.Changed("learn-dir")) {
			return Usagef("--keep goes with --store")
		}
		if *place != "" {
			if opts.Store, err = store.Open(ctx, *place, store.Options{}); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, opts.Store.Close()) }()
			if opts.LearnDir == "" && !store.IsPostgres(*place) {
				opts.LearnDir = strings.TrimPrefix(*place, "sqlite:") + ".learned"
			}
			keep.Keep, keep.MaxBytes = store.Keep(kept), int64(*size*(1<<30))
			dir := cmp.Or(*keepDir, strings.TrimPrefix(*place, "sqlite:")+".images")
			switch {
			case keep.Keep == store.KeepNone:
			case strings.Contains(*place, "://") && *keepDir == "":
				return Usagef("--store %s…: name the folder of images by --keep-dir, or keep none by --keep none", "postgres://")
			default:
				if opts.Images, err = store.OpenImages(dir, keep); err != nil {
					return err
				}
				defer func() { err = errors.Join(err, opts.Images.Close()) }()
			}
		}
		listeners, err := listenAll(*listen, c.Changed("listen"))
		if err != nil {
			return err
		}
		closeAll := func() {
			for _, l := range listeners {
				l.Close()
			}
		}
		var forMetrics net.Listener
		if *metrics != "" {
			if forMetrics, err = listenOn(*metrics); err != nil {
				closeAll()
				return err
			}
		}
		server, err := serve.New(ctx, opts)
		if err != nil {
			closeAll()
			if forMetrics != nil {
				forMetrics.Close()
			}
			return err
		}
		defer server.Close()
		if err := access.Notify("READY=1"); err != nil {
			opts.Log.Warn("systemd could not be told", "error", err)
		}
		return server.Serve(ctx, listeners, forMetrics)
	}
	return c.done()
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
		return net.Listen("unix", file)
	}
	return net.Listen("tcp", address)
}
