package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/serve"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

var _ = declare("store", 101, "backup STORE FILE | restore FILE STORE | prune … STORE | resend … STORE", "Copy a store of verdicts, remove what is old, or send events again",
	`backup copies an SQLite store to a file, also while serve runs. restore puts such a copy in the place of a store that is gone, once its audit trail is proven. PostgreSQL has pg_dump and pg_restore for both.

prune removes the oldest verdicts and their features, but for reviewed ones. A line of the audit trail says up to which head they were, and audit proves what is left.

resend sends the events again that the webhook refused so often that they were set aside, each once, also while serve runs. Those that it takes are set aside no more.`, addStore)

func addStore(c *command) {
	c.readsURLs = []string{""}
	c.section("prune")
	old := c.Duration("older-than", 0, "remove verdicts that are older than `TIME`, such as 2160h")
	c.section("resend")
	var hook serve.Options
	c.sets(&hook)
	c.StringVar(&hook.Webhook, "webhook", "", "the `URL` that serve tells")
	c.StringVar(&hook.WebhookSecret, "webhook-secret", "", "`FILE` with the secret that signs what is sent")
	c.takes(0, anyNumber, "")
	c.run = func(ctx context.Context, s Streams) error {
		switch what := c.Arg(0); {
		case what == "backup" && c.NArg() == 3:
			return backup(ctx, c.Arg(1), c.Arg(2))
		case what == "restore" && c.NArg() == 3:
			return restore(ctx, c.Arg(1), c.Arg(2))
		case what == "prune" && c.NArg() == 2 && *old > 0:
			return prune(ctx, s, c.Arg(1), *old)
		case what == "resend" && c.NArg() == 2 && hook.Webhook != "":
			return resend(ctx, s, c.Arg(1), hook)
		}
		return Usagef("it is backup STORE FILE, restore FILE STORE, prune --older-than TIME STORE, or resend --webhook URL --webhook-secret FILE STORE")
	}
}

// open opens a store that exists.
func openExisting(ctx context.Context, place string) (store.Store, error) {
	if !store.IsPostgres(place) {
		if err := disk.CheckReadable(place, disk.Values); err != nil {
			return nil, err
		}
	}
	return store.Open(ctx, place)
}

func backup(ctx context.Context, place, file string) error {
	st, err := openExisting(ctx, place)
	if err != nil {
		return err
	}
	return errors.Join(st.Backup(ctx, file), st.Close())
}

func restore(ctx context.Context, file, place string) error {
	if store.IsPostgres(place) {
		return Usagef("PostgreSQL has its own tools for this: pg_restore")
	}
	st, err := store.OpenReadOnly(ctx, file)
	if err != nil {
		return err
	}
	_, err = st.Verify(ctx)
	if err = errors.Join(err, st.Close()); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	from, err := os.Open(file)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(place, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Sync(), to.Close())
}

func prune(ctx context.Context, s Streams, place string, old time.Duration) error {
	st, err := openExisting(ctx, place)
	if err != nil {
		return err
	}
	all := 0
	for n := -1; n != 0 && err == nil; all += n {
		n, err = st.Prune(ctx, time.Now().Add(-old), "mlrbfn store prune")
	}
	if err == nil && all > 0 {
		err = st.Compact(ctx)
	}
	if err = errors.Join(err, st.Close()); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.Out, "%s: %d lines went\n", store.Name(place), all)
	return err
}

func resend(ctx context.Context, s Streams, place string, opts serve.Options) (err error) {
	if opts.Store, err = openExisting(ctx, place); err != nil {
		return err
	}
	taken, refused, err := serve.ResendRefused(ctx, opts, "mlrbfn store resend")
	if err = errors.Join(err, opts.Store.Close()); err != nil {
		return err
	}
	if _, err = fmt.Fprintf(s.Out, "%d taken, %d refused\n", taken, refused); err == nil && refused > 0 {
		err = errors.New("the webhook still refuses events")
	}
	return err
}
