package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/options"
)

// baseKey is the key of the head up to which lines of the audit trail went, and pruned what
// the lines are called that say so.
const (
	baseKey = "trail/base"
	pruned  = "prune"
)

// pruneLines is how many lines go at a time: others wait for it.
const pruneLines = 50_000

func (d *db) Prune(ctx context.Context, before time.Time, by string) (n int, err error) {
	err = d.inTx(ctx, func(tx *sql.Tx) error {
		seq, last, err := d.lockHead(ctx, tx)
		if err != nil {
			return err
		}
		base, err := d.base(ctx, tx)
		if err != nil {
			return err
		}
		until := min(seq, base.Seq+pruneLines)
		for _, table := range []string{"verdicts", "reviews"} {
			var first sql.NullInt64
			if err := tx.QueryRowContext(ctx, `SELECT min(seq) FROM `+table+` WHERE time >= $1 AND seq > $2`, before.UnixMicro(), base.Seq).Scan(&first); err != nil {
				return err
			}
			if first.Valid {
				until = min(until, first.Int64-1)
			}
		}
		if until <= base.Seq {
			return nil
		}
		var sum []byte
		if err := tx.QueryRowContext(ctx, `SELECT hash FROM verdicts WHERE seq = $1 UNION ALL SELECT hash FROM reviews WHERE seq = $1`, until).Scan(&sum); err != nil {
			return err
		}
		for _, statement := range []string{
			`DELETE FROM features WHERE seq > $1 AND seq <= $2 AND NOT EXISTS (SELECT 1 FROM verdicts v JOIN reviews r ON r.id = v.id WHERE v.seq = features.seq)`,
			`DELETE FROM verdicts WHERE seq > $1 AND seq <= $2 AND NOT EXISTS (SELECT 1 FROM reviews r WHERE r.id = verdicts.id)`,
		} {
			if _, err := tx.ExecContext(ctx, statement, base.Seq, until); err != nil {
				return err
			}
		}
		n = int(until - base.Seq)
		base = Head{until, hex.EncodeToString(sum)}
		value, err := json.Marshal(base)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO state (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value`, baseKey, value); err != nil {
			return err
		}
		line := Review{ID: pruned, Time: time.Now(), By: by, Decision: Acted, Class: fmt.Sprintf("%d lines up to %s", n, base)}.normal()
		var lines lineHash
		last = lines.ofReview(last, seq+1, &line)
		if _, err := tx.ExecContext(ctx, `INSERT INTO reviews (seq, id, time, reviewer, decision, class, hash) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
			seq+1, line.ID, line.Time.UnixMicro(), line.By, string(line.Decision), line.Class, last[:]); err != nil {
			return err
		}
		return setHead(ctx, tx, seq+1, last)
	})
	return n, err
}

// base is the head up to which lines went; the zero one where none did.
func (d *db) base(ctx context.Context, in queried) (base Head, err error) {
	var value []byte
	err = in.QueryRowContext(ctx, `SELECT value FROM state WHERE key = $1 AND value IS NOT NULL`, baseKey).Scan(&value)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return base, nil
	case err != nil:
		return base, err
	}
	if err := json.Unmarshal(value, &base); err != nil || base.Seq < 1 || len(base.Hash) != 2*len(hash{}) {
		return base, &BrokenError{Seq: 1, What: "what is noted of the lines that went cannot be read"}
	}
	return base, nil
}

// begins returns where the lines begin that there are, and the hash of the line before: a line
// of the trail itself says so where some went.
func (d *db) begins(ctx context.Context) (base Head, last hash, err error) {
	if base, err = d.base(ctx, d.read); err != nil || base.Seq == 0 {
		return base, last, err
	}
	var says string
	err = d.read.QueryRowContext(ctx, `SELECT class FROM reviews WHERE id = $1 AND decision = $2 ORDER BY seq DESC LIMIT 1`, pruned, string(Acted)).Scan(&says)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return base, last, err
	}
	sum, err := hex.DecodeString(base.Hash)
	if copy(last[:], sum); err != nil || !strings.HasSuffix(says, " "+base.String()) {
		return base, last, &BrokenError{Seq: base.Seq, What: "it and the lines before it went, and no line of the trail says so"}
	}
	return base, last, nil
}

func (d *db) Backup(ctx context.Context, file string) error {
	if d.postgres {
		return options.Errorf("Store", "PostgreSQL has its own tools for this: pg_dump and pg_restore")
	}
	if d.readOnly {
		return errReadOnly
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // SQLite takes one that is empty
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if _, err := d.write.ExecContext(ctx, `VACUUM INTO $1`, file); err != nil {
		return errors.Join(fmt.Errorf("backup: %w", err), os.Remove(file))
	}
	return nil
}

func (d *db) Compact(ctx context.Context) error {
	if d.postgres {
		return nil
	}
	if d.readOnly {
		return errReadOnly
	}
	_, err := d.write.ExecContext(ctx, `VACUUM`)
	return err
}
