WITH drawn AS (
  SELECT
    q.name,
    r.row_id,
    r.draw,
    r.pool,
    r.stratum
  FROM ranked AS r
  JOIN quotas AS q
    ON q.pool = r.pool AND q.stratum = r.stratum
  WHERE
    r.turn <= q.quota
), sizes AS (
  SELECT
    name,
    pool,
    stratum,
    COUNT(*) AS offers
  FROM drawn
  GROUP BY
    name,
    pool,
    stratum
), covered AS (
  SELECT
    s.name,
    s.stratum,
    s.offers,
    COALESCE(p.offers, 0) AS produced,
    CAST(SUM(s.offers) OVER (PARTITION BY s.name) AS BIGINT) AS all_offers,
    CAST(SUM(COALESCE(p.offers, 0)) OVER (PARTITION BY s.name) AS BIGINT) AS all_produced
  FROM sizes AS s
  LEFT JOIN production AS p
    ON p.label = s.stratum
)
SELECT
  d.name,
  d.row_id,
  d.draw,
  d.pool,
  d.stratum,
  CASE
    WHEN c.all_produced = 0
    THEN 1.0E0
    ELSE CAST(c.produced AS DOUBLE) * CAST(c.all_offers AS DOUBLE) / (
      CAST(c.all_produced AS DOUBLE) * CAST(c.offers AS DOUBLE)
    )
  END AS weight
FROM drawn AS d
JOIN covered AS c
  ON c.name = d.name AND c.stratum = d.stratum
