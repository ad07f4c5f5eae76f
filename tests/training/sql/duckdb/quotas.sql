WITH sorted AS (
  SELECT
    s.name,
    s.pool,
    s.offers AS wanted,
    s.least,
    s.most,
    a.stratum,
    a.offers,
    CAST(COALESCE(
      SUM(a.offers) OVER (
        PARTITION BY s.name
        ORDER BY a.offers, a.stratum
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ),
      0
    ) AS BIGINT) AS given,
    COUNT(*) OVER (PARTITION BY s.name) + 1 - ROW_NUMBER() OVER (PARTITION BY s.name ORDER BY a.offers, a.stratum) AS remaining
  FROM sets AS s
  JOIN available AS a
    ON a.pool = s.pool
  WHERE
    s.rule = 'uniform'
), parts AS (
  SELECT
    *,
    (
      wanted - given
    ) // remaining AS part
  FROM sorted
), levels AS (
  SELECT
    name,
    MIN(CASE WHEN offers > part THEN part END) AS level,
    MIN(CASE WHEN offers > part THEN wanted - given - part * remaining END) AS spare
  FROM (
    SELECT
      *,
      ROW_NUMBER() OVER (PARTITION BY name, offers > part ORDER BY offers, stratum) AS place
    FROM parts
  ) AS numbered
  WHERE
    place = 1
  GROUP BY
    name
), bounded AS (
  SELECT
    s.name,
    s.pool,
    s.stratum,
    s.offers,
    CASE
      WHEN l.level IS NULL OR l.level >= s.most
      THEN s.most
      WHEN l.level < s.least
      THEN s.least
      ELSE l.level
    END AS level,
    CASE
      WHEN l.level IS NULL OR l.level >= s.most OR l.level < s.least
      THEN 0
      ELSE l.spare
    END AS spare,
    MD5(CONCAT('7', '/spare/', s.stratum)) AS lot
  FROM sorted AS s
  JOIN levels AS l
    ON l.name = s.name
), uniform AS (
  SELECT
    name,
    pool,
    stratum,
    LEAST(
      offers,
      level + CASE
        WHEN offers > level
        AND ROW_NUMBER() OVER (PARTITION BY name, offers > level ORDER BY lot, stratum) <= spare
        THEN 1
        ELSE 0
      END
    ) AS quota
  FROM bounded
), counted AS (
  SELECT
    s.name,
    s.pool,
    s.offers AS wanted,
    s.least,
    p.label AS stratum,
    p.offers * s.offers // t.total AS seats,
    p.offers * s.offers % t.total AS remainder
  FROM sets AS s
  CROSS JOIN production AS p
  CROSS JOIN (
    SELECT
      CAST(SUM(offers) AS BIGINT) AS total
    FROM production
  ) AS t
  WHERE
    s.rule = 'production'
), seated AS (
  SELECT
    name,
    pool,
    least,
    stratum,
    seats + CASE
      WHEN ROW_NUMBER() OVER (PARTITION BY name ORDER BY remainder DESC, stratum) <= wanted - SUM(seats) OVER (PARTITION BY name)
      THEN 1
      ELSE 0
    END AS seats
  FROM counted
), alike AS (
  SELECT
    s.name,
    s.pool,
    a.stratum,
    LEAST(a.offers, GREATEST(s.least, COALESCE(t.seats, 0))) AS quota
  FROM sets AS s
  JOIN available AS a
    ON a.pool = s.pool
  LEFT JOIN seated AS t
    ON t.name = s.name AND t.stratum = a.stratum
  WHERE
    s.rule = 'production'
)
SELECT
  name,
  pool,
  stratum,
  CAST(quota AS BIGINT) AS quota
FROM uniform
UNION ALL
SELECT
  name,
  pool,
  stratum,
  CAST(quota AS BIGINT) AS quota
FROM alike
