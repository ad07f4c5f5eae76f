WITH reach AS (
  SELECT
    pool,
    stratum,
    MAX(quota) AS most
  FROM quotas
  GROUP BY
    pool,
    stratum
), kinds AS (
  SELECT
    p.row_id,
    p.draw,
    p.pool,
    p.stratum,
    r.most,
    CASE WHEN p.pool IN ('train', 'transfer') THEN p.outer_lot ELSE '' END AS outer_lot,
    CASE WHEN p.pool IN ('train', 'transfer') THEN p.middle_lot ELSE '' END AS middle_lot,
    CASE WHEN p.pool IN ('train', 'transfer') THEN p.inner_lot ELSE '' END AS inner_lot
  FROM pools AS p
  JOIN reach AS r
    ON r.pool = p.pool AND r.stratum = p.stratum
), inner_turns AS (
  SELECT
    *,
    ROW_NUMBER() OVER (
      PARTITION BY pool, stratum, outer_lot, middle_lot, inner_lot
      ORDER BY draw, row_id
    ) AS inner_turn
  FROM kinds
), middle_turns AS (
  SELECT
    *,
    ROW_NUMBER() OVER (
      PARTITION BY pool, stratum, outer_lot, middle_lot
      ORDER BY inner_turn, inner_lot, draw, row_id
    ) AS middle_turn
  FROM inner_turns
  WHERE
    inner_turn <= most
), outer_turns AS (
  SELECT
    *,
    ROW_NUMBER() OVER (
      PARTITION BY pool, stratum, outer_lot
      ORDER BY middle_turn, middle_lot, draw, row_id
    ) AS outer_turn
  FROM middle_turns
  WHERE
    middle_turn <= most
), turns AS (
  SELECT
    *,
    ROW_NUMBER() OVER (PARTITION BY pool, stratum ORDER BY outer_turn, outer_lot, draw, row_id) AS turn
  FROM outer_turns
  WHERE
    outer_turn <= most
)
SELECT
  row_id,
  draw,
  pool,
  stratum,
  turn
FROM turns
WHERE
  turn <= most
